-- Records free hits, once for each id: no call of any window, no limit. `model`: whose answer it was; `hits`: how many; then further fields of
-- the ledger record, flat. Answers 'recorded', 'again' or why not.

return each(function(id, key_id, source, model, hits, ...)
  local project, why_not = open_project()
  if not project then return why_not end
  if not redis.call('SET', name('hits', id), 1, 'NX', 'PX', KEEP_MS) then return 'again' end

  append(id, { key_id = key_id, source = source, month = project.month, at = project.now }, {
    kind = 'hit', cost = 0, calls = 0, tokens = 0, input = 0, output = 0, model = model, answers = hits, cached = hits,
  }, ...)
  return 'recorded'
end)
