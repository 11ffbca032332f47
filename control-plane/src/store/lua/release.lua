-- Gives a reservation back whole, once. ARGV: 1 id.
--
-- Answers 'released', 'corrected' (it had expired and was charged), 'nothing' (it had ended), 'gone' (no such project), 'state_missing'.

local id = ARGV[1]
local project, why_not = open_project()
if not project then return why_not end

local record = read_reservation(id)
if record.state == 'held' then
  book(project, record.month, nil, record.neg_hold)
  recount_reservation(record, -record.calls, -record.tokens, -(record.sender_tokens or 0))
  finish(id, 'released')
  return 'released'
elseif record.state == 'expired' then
  book(project, record.month, record.neg_hold)
  recount_reservation(record, -record.calls, -record.tokens, -(record.sender_tokens or 0))
  append(id, record, {
    kind = 'correction', cost = record.neg_hold, calls = -record.calls, tokens = -record.tokens,
    input = -record.input, output = -record.output,
  }, call_of(record))
  finish(id, 'released')
  return 'corrected'
elseif not record.state then
  -- It overtook its admission, which will find this and be refused.
  finish(id, 'released')
  return 'released'
end
return 'nothing'
