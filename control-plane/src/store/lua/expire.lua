-- Charges holds that are due. ARGV: 1 how many at most. Answers how many there were: fewer than that means that none is left.

local project = open_project()
if not project then return 0 end
return expire_due(project, tonumber(ARGV[1]))
