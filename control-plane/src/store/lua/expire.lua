-- Charges holds that are due, so many at most. Answers how many there were: fewer than that means that none is left.

return each(function(most)
  local project = read_state()
  if not project then return 0 end
  -- Of a project that was deleted, too: what its last calls held is owed.
  bring_up_to_date(project)
  return expire_due(project, most)
end)
