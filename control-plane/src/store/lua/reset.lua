-- Begins windows anew, for everybody at once: the month, or ceilings of a key, of a sender or of all of them.
--
-- `id`: of the ledger record; `what`: 'monthly_cap', a ceiling, or 'all'; `key_id` and `source`: whose, both empty: of all.
--
-- A reset changes no cost that was recorded: what no longer counts towards the caps of this month is the record's `forgiven_nano_usd`.
-- Resetting the month also makes a state that was lost, on the word of whoever asks. Answers 'done', 'gone', 'state_missing'.

return each(function(id, what, key_id, source, note)
  local of_all = key_id == '' and source == ''
  local the_month = what == 'monthly_cap' or (what == 'all' and of_all)

  local project, why_not = open_project()
  if why_not == 'state_missing' and the_month then
    redis.call('HSET', name('state'), 'month', '0', 'spend', '0', 'held', '0', 'clock_ms', '0')
    project = open_project()
    recount_held(project.month)
  elseif not project then
    return why_not
  end

  -- What follows reads and writes the state by itself.
  write()
  local forgiven = '0'
  if the_month then
    forgiven = redis.call('HGET', name('state'), 'spend')
    redis.call('HSET', name('state'), 'spend', '0')
    redis.call('HSET', name('spend_month', project.month), 'spend', '0')
  end

  if what ~= 'monthly_cap' then
    local hashes = {}
    local function add(kind, owner, ids)
      for _, id in ipairs(ids) do
        hashes[#hashes + 1] = name(kind, id)
        -- Their absence is meant.
        if what == 'all' then redis.call('HDEL', name(owner, id), 'window_until') end
      end
    end
    if of_all then
      add('key_window', 'key', redis.call('SMEMBERS', name('keys')))
      add('sender_window', 'sender', redis.call('SMEMBERS', name('senders')))
    else
      if key_id ~= '' then add('key_window', 'key', { key_id }) end
      if source ~= '' then add('sender_window', 'sender', { source }) end
    end
    for _, hash in ipairs(hashes) do
      for _, ceiling in ipairs(CEILINGS) do
        if what == 'all' or what == ceiling.name then
          local fields = { ceiling.head, ceiling.sum }
          for s = 0, BUCKETS - 1 do fields[#fields + 1] = slot(ceiling, s) end
          redis.call('HDEL', hash, unpack(fields))
        end
      end
    end
  end

  append(id, { key_id = key_id, source = source, month = project.month, at = project.now }, {
    kind = 'reset', cost = 0, calls = 0, tokens = 0, input = 0, output = 0, model = '',
  }, 'window', what, 'forgiven_nano_usd', forgiven, 'note', note)
  return 'done'
end)
