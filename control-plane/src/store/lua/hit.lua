-- Records a hit that is free: no call of any window, no limit.
--
-- A call: 1 id, 2 key id, 3 source, 4 the model that answered, then further fields of the ledger record, flat. Answers 'recorded' or why not.

return each(function(ARGV)
  local books = books()
  local project, why_not = open_project()
  if not project then return why_not end

  local record = { key_id = ARGV[2], source = ARGV[3], month = project.month, at = project.now }
  books.append(ARGV[1], record, {
    kind = 'hit', cost = '0', calls = 0, tokens = 0, input = 0, output = 0, model = ARGV[4], answers = 1, cached = 1,
  }, { unpack(ARGV, 5) })
  return 'recorded'
end)
