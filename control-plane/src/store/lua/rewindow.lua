-- Makes the windows of a key or sender anew where they were lost: from the ledger's last hour and from what is held.
--
-- Answers 'done', 'gone', 'state_missing', or 'too_many': the hour is too long to be counted while everybody waits, and only an operator's
-- reset makes them anew.

return each(function(of_key, id)
  local PAGE, MOST_PAGES = 1000, 20

  local project, why_not = open_project()
  if not project then return why_not end
  local key = name(of_key and 'key_window' or 'sender_window', id)
  -- Many calls find them lost at the same time.
  if not read_windows(key, project.now).absent then return 'done' end

  -- `since`: when an operator began them anew.
  local sums, slots, since = { 0, 0, 0 }, {}, { -1, -1, -1 }
  local function add(at, calls, tokens)
    for i, ceiling in ipairs(CEILINGS) do
      local bucket, more = floor(at / ceiling.width), i == TOKENS and tokens or calls
      if at > since[i] and floor(project.now / ceiling.width) - bucket < BUCKETS then
        local field = slot(ceiling, bucket)
        sums[i], slots[field] = sums[i] + more, (slots[field] or 0) + more
      end
    end
  end

  local time = redis.call('TIME')
  local oldest = tonumber(time[1]) * 1000 - BUCKETS * CEILINGS[CALLS].width
  local before, pages = '+', 0
  repeat
    local page = redis.call('XREVRANGE', name('ledger'), before, string.format('%.0f', oldest), 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      local record = {}
      for i = 1, #entry[2], 2 do record[entry[2][i]] = entry[2][i + 1] end
      local is_of = record[of_key and 'key_id' or 'source'] == id
      if record.kind == 'reset' and (is_of or record.key_id .. record.source == '') then
        for i, ceiling in ipairs(CEILINGS) do
          if record.window == 'all' or record.window == ceiling.name then since[i] = max(since[i], tonumber(record.at_ms)) end
        end
      elseif is_of then
        add(tonumber(record.at_ms), tonumber(record.calls), tonumber(record.tokens))
      end
      before = '(' .. entry[1]
    end
    pages = pages + 1
    if pages > MOST_PAGES then return 'too_many' end
  until #page < PAGE

  for _, held in ipairs(redis.call('ZRANGE', name('due'), 0, -1)) do
    local record = read_reservation(held)
    if record.state == 'held' and record[of_key and 'key_id' or 'source'] == id and (of_key or record.sender_tokens) then
      add(record.at, record.calls, of_key and record.tokens or record.sender_tokens)
    end
  end

  local fields = {}
  for i, ceiling in ipairs(CEILINGS) do
    fields[4 * i - 3], fields[4 * i - 2] = ceiling.head, floor(project.now / ceiling.width)
    fields[4 * i - 1], fields[4 * i] = ceiling.sum, sums[i]
  end
  -- What follows writes by itself.
  write()
  redis.call('DEL', key)
  redis.call('HSET', key, unpack(fields))
  for field, sum in pairs(slots) do redis.call('HSET', key, field, sum) end
  redis.call('EXPIRE', key, WINDOW_TTL_S)
  if floor(project.now / 1000) > floor(project.clock / 1000) then redis.call('HSET', name('state'), 'clock_ms', project.now) end
  return 'done'
end)
