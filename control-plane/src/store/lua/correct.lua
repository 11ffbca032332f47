-- Adds a signed amount to the running month, once.
--
-- A call: 1 id, 2 key id and 3 source it is put down to (or empty), 4 cost (nano-USD), 5 note.
--
-- Answers 'done' (also the second time), 'gone', 'state_missing'.

return each(function(ARGV)
  local books = books()
  local id = ARGV[1]
  local project, why_not = open_project()
  if not project then return why_not end
  if redis.call('EXISTS', name('reservation', id)) == 1 then return 'done' end

  local record = { key_id = ARGV[2], source = ARGV[3], month = project.month, at = project.now }
  book(project, project.month, ARGV[4])
  books.append(id, record, {
    kind = 'correction', cost = ARGV[4], calls = 0, tokens = 0, input = 0, output = 0, model = '',
  }, { 'note', ARGV[5] })
  books.finish(id, record, 'settled')
  return 'done'
end)
