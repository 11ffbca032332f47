-- Adds a signed amount to the running month, once; `key_id` and `source` it is put down to, or empty.
--
-- Answers 'done' (also the second time), 'gone', 'state_missing'.

return each(function(id, key_id, source, cost, note)
  local project, why_not = open_project()
  if not project then return why_not end
  if read_reservation(id).state then return 'done' end

  local record = { key_id = key_id, source = source, month = project.month, at = project.now }
  book(project, project.month, cost)
  append(id, record, { kind = 'correction', cost = cost, calls = 0, tokens = 0, input = 0, output = 0, model = '' }, 'note', note)
  finish(id, record, 'settled')
  return 'done'
end)
