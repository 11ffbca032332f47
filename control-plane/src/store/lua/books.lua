-- How reservations end, and the ledger.

-- What a project used is counted in a hash a day; a field is `<metric>|<key id>|<model>|<sender>`, so that sums by any of them can be made of it.

local METRICS = { 'answers', 'cost', 'input', 'cached_input', 'cache_write', 'output', 'cached', 'estimated' }
-- Senders are named by clients: past this many fields in a day, new ones are counted together.
local MAX_FIELDS = 40000
local OTHERS = '(others)'
local KEEP_DAY_S = 400 * 86400

local function write_tally(tally, sums)
  local row, known = tally.of .. tally.source, false
  for _, metric in ipairs(METRICS) do
    local more = sums[metric]
    if more and more ~= 0 then
      local sum = redis.call('HINCRBY', tally.key, metric .. row, more)
      -- A field that is new, by its sum: only then can there be too many, or the first.
      if not known and sum == more then
        local fields = redis.call('HLEN', tally.key)
        if fields == 1 then redis.call('EXPIRE', tally.key, KEEP_DAY_S) end
        if fields > MAX_FIELDS and tally.source ~= OTHERS then
          redis.call('HDEL', tally.key, metric .. row)
          row = tally.of .. OTHERS
          redis.call('HINCRBY', tally.key, metric .. row, more)
        end
      end
      known = true
    end
  end
end

local function tally(key, record, entry)
  local of = '|' .. record.key_id .. '|' .. entry.model .. '|'
  local row = key .. of .. record.source
  run.tallies[row] = run.tallies[row] or { key = key, of = of, source = record.source, sums = {} }
  for _, metric in ipairs(METRICS) do
    local more = entry[metric]
    if more and not add_to(run.tallies[row].sums, metric, more) then write_tally(run.tallies[row], { [metric] = more }) end
  end
end

-- Writes all that waits for the end of a run.
local function write()
  for key, sums in pairs(run.sums) do
    for field, sum in pairs(sums) do redis.call('HINCRBY', key, field, sum) end
  end
  for _, windows in pairs(run.windows) do write_windows(windows) end
  for key in pairs(run.rings) do write_ring(key) end
  if #run.held > 0 then redis.call('ZADD', name('due'), unpack(run.held)) end
  if #run.ended > 0 then redis.call('ZREM', name('due'), unpack(run.ended)) end
  for _, tally in pairs(run.tallies) do write_tally(tally, tally.sums) end
  run.sums, run.windows, run.rings, run.held, run.ended, run.tallies = {}, {}, {}, {}, {}, {}
end

-- Changes what a call counts that was admitted at `at`, in the bucket of that instant; nothing where that bucket is gone. A bucket never
-- falls below zero, even when an operator deleted the window meanwhile.
local function recount(key, at, calls, tokens)
  if calls == 0 and tokens == 0 then return end
  if run.windows[key] then
    write_windows(run.windows[key])
    run.windows[key] = nil
  end
  local ring = run.rings[key] or { values = {}, changed = {} }
  run.rings[key] = ring
  local values, changed = ring.values, ring.changed
  for i = calls == 0 and TOKENS or CALLS, TOKENS do
    local ceiling, more = CEILINGS[i], i == TOKENS and tokens or calls
    local head, sum, bucket = ceiling.head, ceiling.sum, floor(at / ceiling.width)
    local here = slot(ceiling, bucket)
    if values[here] == nil then
      local got = redis.call('HMGET', key, head, sum, here)
      values[here] = (got[3] or 0) + 0
      if values[head] == nil then values[head], values[sum] = got[1] and got[1] + 0, (got[2] or 0) + 0 end
    end
    more = max(more, -values[here])
    if values[head] and more ~= 0 and values[head] - bucket < BUCKETS then
      values[sum], values[here] = values[sum] + more, values[here] + more
      changed[sum], changed[here] = true, true
    end
  end
end

-- A reservation is a record, packed: `state` ('held', 'expired', of a hit 'settled'), `kind` ('call', 'hit'), `soft_cap` (1: past it), whose
-- it is, the instant and month of its admission, what it holds (`calls`: 0 of a side call; `money` in nano-USD), what its ledger record
-- tells if it is never settled, whether it is in the sets of calls at once, and the tokens that its sender counts, nil for none.

local function write_reservation(id, r, ...)
  redis.call('SET', name('reservation', id), cmsgpack.pack(r.state, r.kind, r.soft_cap, r.key_id, r.source, r.at, r.month, r.calls, r.tokens,
    r.money, r.input, r.output, r.endpoint, r.requested_model, r.resolved_model, r.end_user, r.started_at_ms, r.in_key, r.in_sender,
    r.sender_tokens), ...)
end

-- A record as the first versions kept it: a hash of texts.
local function read_hash(id)
  local flat, record = redis.call('HGETALL', name('reservation', id)), {}
  for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
  record.money = record.hold
  for _, number in ipairs({ 'soft_cap', 'at', 'month', 'calls', 'tokens', 'money', 'input', 'output', 'sender_tokens' }) do
    record[number] = tonumber(record[number])
  end
  return record
end

-- Empty if it is unknown; its state alone if nothing can change it any more.
local function read_reservation(id)
  local packed = redis.pcall('GET', name('reservation', id))
  if not packed then return {} end
  if packed.err then return read_hash(id) end
  if packed == 'settled' or packed == 'released' then return { state = packed } end
  local state, kind, soft_cap, key_id, source, at, month, calls, tokens, money, input, output, endpoint, requested_model, resolved_model,
    end_user, started_at_ms, in_key, in_sender, sender_tokens = cmsgpack.unpack(packed)
  return {
    state = state, kind = kind, soft_cap = soft_cap, key_id = key_id, source = source, at = at, month = month, calls = calls,
    tokens = tokens, money = money, input = input, output = output, endpoint = endpoint, requested_model = requested_model,
    resolved_model = resolved_model, end_user = end_user, started_at_ms = started_at_ms, in_key = in_key, in_sender = in_sender,
    sender_tokens = sender_tokens,
  }
end

-- What the reservations of the running month hold, counted anew from their records into the state.
local function recount_held(month)
  write()
  redis.call('HSET', name('state'), 'held', '0')
  for _, id in ipairs(redis.call('ZRANGE', name('due'), 0, -1)) do
    local record = read_reservation(id)
    if record.state == 'held' and record.month == month then redis.call('HINCRBY', name('state'), 'held', record.money) end
  end
end

-- Ends a reservation that was `record`: it is kept for a while as a word, for no later message changes anything, or as the record that is
-- now that of an expired one, which a late message corrects.
local function finish(id, record, word)
  if record.state == 'held' then
    run.ended[#run.ended + 1] = id
    if record.in_key then redis.call('SREM', name('held_by_key', record.key_id), id) end
    if record.in_sender then redis.call('SREM', name('held_by_sender', record.source), id) end
  end
  if word == 'expired' then
    record.state = word
    write_reservation(id, record, 'PX', KEEP_MS)
  else
    redis.call('SET', name('reservation', id), word, 'PX', KEEP_MS)
  end
end

-- Changes what the windows count for a reservation, relative to its hold.
local function recount_reservation(record, calls, tokens, sender_tokens)
  recount(name('key_window', record.key_id), record.at, calls, tokens)
  if record.sender_tokens then recount(name('sender_window', record.source), record.at, calls, sender_tokens) end
end

-- Appends to the ledger and counts it. `record`: whose it is, `month` and `at` (the instant of its admission); `entry`: kind, calls and
-- tokens (what the key's windows count), model, and the METRICS; then further fields, flat. The sum of costs is the spend of the month, the
-- sums of calls and tokens are what the windows counted.
local function append(id, record, entry, ...)
  redis.call('XADD', name('ledger'), '*', 'id', id, 'kind', entry.kind, 'key_id', record.key_id, 'source', record.source,
    'month', record.month, 'at_ms', record.at, 'cost_nano_usd', entry.cost, 'calls', entry.calls, 'tokens', entry.tokens,
    'input_tokens', entry.input, 'output_tokens', entry.output, ...)
  local day = floor(record.at / DAY_MS)
  run.days[day] = run.days[day] or name('spend_day', date_number(day))
  tally(run.days[day], record, entry)
end

-- What a ledger record tells of a call that was never settled.
local function call_of(record)
  return 'end_user', record.end_user, 'endpoint', record.endpoint, 'requested_model', record.requested_model,
    'resolved_model', record.resolved_model, 'started_at_ms', record.started_at_ms, 'model', record.resolved_model
end

-- A ledger entry that takes back all that a reservation was charged.
local function taken_back(record)
  local is_hit = record.kind == 'hit'
  return {
    kind = 'correction', cost = 0 - record.money, calls = 0 - record.calls, tokens = 0 - record.tokens, input = 0 - record.input,
    output = 0 - record.output, model = record.resolved_model, answers = 0 - record.calls, cached = is_hit and -1 or 0,
    estimated = is_hit and 0 or 0 - record.calls,
  }
end

-- Charges holds that are due at their estimate. Their tokens and calls stay counted.
local function charge(project, due)
  for _, id in ipairs(due) do
    local record = read_reservation(id)
    if record.state == 'held' then
      book(project, record.month, record.money, -record.money)
      append(id, record, {
        kind = 'expired', cost = record.money, calls = record.calls, tokens = record.tokens, input = record.input,
        output = record.output, model = record.resolved_model, answers = record.calls, estimated = record.calls,
      }, 'estimated', 1, call_of(record))
      finish(id, record, 'expired')
    else
      redis.call('ZREM', name('due'), id)
    end
  end
end

-- Charges up to `most` holds that are due, once in a run, and says how many were.
local function expire_due(project, most)
  if project.is_swept then return 0 end
  project.is_swept = true
  local due = redis.call('ZRANGE', name('due'), '-inf', project.now, 'BYSCORE', 'LIMIT', 0, most)
  if #due > 0 then charge(project, due) end
  return #due
end
