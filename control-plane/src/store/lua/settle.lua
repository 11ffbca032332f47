-- Replaces the hold of a reservation by what was used, once, and records it in the ledger.
--
-- `input`: tokens that no cache served; `cached_input`, `cache_write`: read from and written to the provider's cache; `estimated`: 1 or 0;
-- `model`: that answered; then further fields of the ledger record, flat. Whose it is and `is_side_call` count only when the reservation is
-- unknown.
--
-- Answers 'recorded', 'nothing' (it had been settled or released), 'gone' (no such project), 'state_missing'.

-- Windows that are lost stay so: who makes them anew will find this call in the ledger.
local function count_now(project, kind, id, tokens, window_until)
  local windows = read_windows(name(kind .. '_window', id), project.now)
  if not are_lost(windows, window_until) then count(project, windows, nil, 1, tokens) end
end

return each(function(id, key_id, source, cost, tokens, input, output, cached_input, cache_write, estimated, model, is_side_call, ...)
  local project, why_not = read_state()
  if not project then return why_not end

  local record = read_reservation(id)
  if record.state == 'settled' or record.state == 'released' then return 'nothing' end

  local unknown = not record.state
  if unknown then
    -- Its admission was never made (the control plane failed, calls were let through) or is forgotten: a call of now, in full.
    if not bring_up_to_date(project) then return 'gone' end
    record = { key_id = key_id, source = source, month = project.month, at = project.now, calls = is_side_call and 0 or 1 }
  end
  local entry = {
    kind = 'call', cost = cost, calls = 1, tokens = tokens, input = input, output = output, cached_input = cached_input,
    cache_write = cache_write, estimated = estimated, model = model, answers = 1,
  }
  local side_call = record.calls == 0
  if side_call then
    -- Money only.
    tokens, entry.tokens, entry.calls, entry.answers, entry.estimated = 0, 0, 0, 0, 0
  end

  if unknown then
    book(project, project.month, cost)
    if not side_call then
      count_now(project, 'key', key_id, tokens, redis.call('HGET', name('key', key_id), 'window_until'))
      local ceilings, window_until = sender_ceilings(source)
      if ceilings then count_now(project, 'sender', source, tokens, window_until) end
    end
  else
    book(project, record.month, cost, record.state == 'held' and -record.money)
    if record.state == 'expired' then
      -- It was charged at its estimate: record the difference.
      book(project, record.month, -record.money)
      entry.kind, entry.cost = 'correction', cost - record.money
      entry.calls, entry.answers, entry.tokens = 0, 0, tokens - record.tokens
      entry.input, entry.output = input - record.input, output - record.output
      entry.estimated = entry.estimated - record.calls
    end
    recount_reservation(record, 0, tokens - record.tokens, tokens - (record.sender_tokens or 0))
  end

  append(id, record, entry, ...)
  finish(id, record, 'settled')
  return 'recorded'
end)
