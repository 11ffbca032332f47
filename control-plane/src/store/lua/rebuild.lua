-- Makes the state of a project anew where it was lost, from the counter of the running month or, without one, from the ledger.
--
-- `ledger_spend`: what the ledger says was spent in the month `ledger_month`; both texts, nil at first.
--
-- Answers {'done'} (also if it was there), {'sum', month, start_ms}: sum the ledger's records of this month, none of which is older than
-- that, and come again; {'no_evidence'}: neither is there, or the ledger may have lost some of the month, and absence is never taken for a
-- spend of zero; {'gone'}.

-- Whether the ledger holds each record since this instant: it has lost none, or none of those since.
local function reaches_back_to(ms)
  local info, facts = redis.call('XINFO', 'STREAM', name('ledger')), {}
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
  if facts['entries-added'] == facts.length then return true end
  local first = facts['first-entry']
  return first and tonumber(string.match(first[1], '^%d+')) <= ms
end

return each(function(ledger_spend, ledger_month)
  local _, why_not = open_project()
  if why_not ~= 'state_missing' then return { why_not or 'done' } end

  local reset_day = tonumber(redis.call('HGET', name('project'), 'reset_day')) or 1
  local time = redis.call('TIME')
  local clock, newest_month = tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000), 0
  -- The project's clock and its month are never behind those of its newest record.
  for _, newest in ipairs(redis.call('XREVRANGE', name('ledger'), '+', '-', 'COUNT', 1)) do
    for i = 1, #newest[2], 2 do
      local field, value = newest[2][i], tonumber(newest[2][i + 1])
      if field == 'at_ms' then clock = max(clock, value or 0) end
      if field == 'month' then newest_month = value or 0 end
    end
  end
  local month = max(period_of(clock, reset_day), newest_month)

  local spend = redis.call('HGET', name('spend_month', month), 'spend')
  if not spend then
    if redis.call('EXISTS', name('ledger')) == 0 then return { 'no_evidence' } end
    local start = first_day(floor(month / 100), month % 100, reset_day) * DAY_MS
    if not reaches_back_to(start) then return { 'no_evidence' } end
    if tonumber(ledger_month) ~= month then return { 'sum', month, start } end
    spend = ledger_spend
    redis.call('HSET', name('spend_month', month), 'spend', spend)
  end
  redis.call('HSET', name('state'), 'month', month, 'spend', spend, 'held', '0', 'clock_ms', clock)
  recount_held(month)
  return { 'done' }
end)
