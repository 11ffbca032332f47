-- Records free hits that a filter answered by itself, told in a batch: no call of any window, no limit. Once for each id.
--
-- A call: 1 id, 2 key id, 3 source, 4 the model whose answer it was, 5 how many, then further fields of the ledger record, flat. Answers
-- 'recorded', 'again' or why not.

return each(function(ARGV)
  local books = books()
  local project, why_not = open_project()
  if not project then return why_not end
  if not redis.call('SET', name('hits', ARGV[1]), 1, 'NX', 'PX', KEEP_MS) then return 'again' end

  local record = { key_id = ARGV[2], source = ARGV[3], month = project.month, at = project.now }
  books.append(ARGV[1], record, {
    kind = 'hit', cost = '0', calls = 0, tokens = 0, input = 0, output = 0, model = ARGV[4], answers = ARGV[5], cached = ARGV[5],
  }, { 'hits', ARGV[5], unpack(ARGV, 6) })
  return 'recorded'
end)
