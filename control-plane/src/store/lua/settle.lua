-- Replaces the hold of a reservation by what was used, once, and records it in the ledger.
--
-- A call: 1 id, 2 key id, 3 source, 4 cost (nano-USD), 5 tokens, 6 input tokens that no cache served, 7 output tokens, 8 input tokens read
-- from and 9 written to the provider's cache, 10 estimated ('1' or '0'), 11 the model that answered, 12 '1' for a side call, then further
-- fields of the ledger record, flat. 2, 3 and 12 count only when the reservation is unknown.
--
-- Answers 'recorded', 'nothing' (it had been settled or released), 'gone' (no such project), 'state_missing'.

return each(function(ARGV)
  local books = books()
  local id, cost, tokens = ARGV[1], ARGV[4], tonumber(ARGV[5])
  local entry = {
    kind = 'call', cost = cost, calls = 1, tokens = tokens, input = ARGV[6], output = ARGV[7], cached_input = ARGV[8],
    cache_write = ARGV[9], estimated = ARGV[10], model = ARGV[11], answers = 1,
  }

  local project, why_not = read_state()
  if not project then return why_not end

  local record = books.read_reservation(id)
  if record.state == 'settled' or record.state == 'released' then return 'nothing' end

  local unknown = not record.state
  if unknown then
    -- Its admission was never made (the control plane failed, calls were let through) or is forgotten: a call of now, in full.
    if not bring_up_to_date(project) then return 'gone' end
    record = { key_id = ARGV[2], source = ARGV[3], month = project.month, at = project.now, calls = ARGV[12] == '1' and '0' or '1' }
  end
  local side_call = record.calls == '0'
  if side_call then
    -- Money only.
    tokens, entry.tokens, entry.calls, entry.answers, entry.estimated = 0, 0, 0, 0, 0
  end

  if unknown then
    book(project, project.month, cost)
    -- Windows that are lost stay so: who makes them anew will find this call in the ledger.
    local function count_now(windows, window_until)
      if not are_lost(windows, window_until) then count(project, windows, nil, 1, tokens) end
    end
    if not side_call then
      local window_until = redis.call('HGET', name('key', record.key_id), 'window_until')
      count_now(read_windows(name('key_window', record.key_id), project.now), window_until)
      local ceilings, window_until = sender_ceilings(record.source)
      if ceilings then count_now(read_windows(name('sender_window', record.source), project.now), window_until) end
    end
  else
    if record.state == 'held' then
      book(project, record.month, cost, record.neg_hold)
    else
      -- It expired and was charged at its estimate: record the difference.
      book(project, record.month, cost)
      book(project, record.month, record.neg_hold)
      entry.kind, entry.cost = 'correction', books.difference(id, cost, record.neg_hold)
      entry.calls, entry.answers, entry.tokens = 0, 0, tokens - record.tokens
      entry.input, entry.output = ARGV[6] - record.input, ARGV[7] - record.output
      entry.estimated = entry.estimated - record.calls
    end
    books.recount_reservation(record, 0, tokens - record.tokens, tokens - (record.sender_tokens or 0))
  end

  books.append(id, record, entry, { unpack(ARGV, 13) })
  books.finish(id, record, 'settled')
  return 'recorded'
end)
