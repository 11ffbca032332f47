-- Gives a reservation back whole, once.
--
-- Answers 'released', 'corrected' (it had been charged: expired, or a hit whose answer never arrived), 'nothing' (it had ended),
-- 'gone' (no such project), 'state_missing'.

return each(function(id)
  local project, why_not = read_state()
  if not project then return why_not end

  local record = read_reservation(id)
  if record.state == 'held' then
    book(project, record.month, nil, -record.money)
    recount_reservation(record, -record.calls, -record.tokens, -(record.sender_tokens or 0))
    finish(id, record, 'released')
    return 'released'
  elseif record.state == 'expired' or (record.state == 'settled' and record.kind == 'hit') then
    book(project, record.month, -record.money)
    recount_reservation(record, -record.calls, -record.tokens, -(record.sender_tokens or 0))
    append(id, record, taken_back(record), call_of(record))
    finish(id, record, 'released')
    return 'corrected'
  elseif not record.state then
    -- It overtook its admission, which will find this and be refused.
    finish(id, record, 'released')
    return 'released'
  end
  return 'nothing'
end)
