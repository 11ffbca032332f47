-- Gives a reservation back whole, once. A call: 1 id.
--
-- Answers 'released', 'corrected' (it had been charged: expired, or a hit whose answer never arrived), 'nothing' (it had ended),
-- 'gone' (no such project), 'state_missing'.

return each(function(ARGV)
  local books = books()
  local id = ARGV[1]
  local project, why_not = read_state()
  if not project then return why_not end

  local record = books.read_reservation(id)
  if record.state == 'held' then
    book(project, record.month, nil, record.neg_hold)
    books.recount_reservation(record, -record.calls, -record.tokens, -(record.sender_tokens or 0))
    books.finish(id, record, 'released')
    return 'released'
  elseif record.state == 'expired' or (record.state == 'settled' and record.kind == 'hit') then
    book(project, record.month, record.neg_hold)
    books.recount_reservation(record, -record.calls, -record.tokens, -(record.sender_tokens or 0))
    books.append(id, record, books.taken_back(record), books.call_of(record))
    books.finish(id, record, 'released')
    return 'corrected'
  elseif not record.state then
    -- It overtook its admission, which will find this and be refused.
    books.finish(id, record, 'released')
    return 'released'
  end
  return 'nothing'
end)
