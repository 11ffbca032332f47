-- How reservations end, and the ledger. scripts.rs puts it into all scripts, after common.lua; in a function for the reason that
-- calendar.lua gives.

local function books()
  if the_books then return the_books end

  -- Windows whose past buckets changed in this run: the fields that were read, and those of them that are others now.
  local rings = {}

  local function write_ring(key)
    local ring, fields = rings[key], {}
    if not ring then return end
    rings[key] = nil
    for field in pairs(ring.changed) do fields[#fields + 1], fields[#fields + 2] = field, ring.values[field] end
    if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  end

  -- Changes what a call counts that was admitted at `at`, in the bucket of that instant; nothing where that bucket is gone. A bucket never
  -- falls below zero, even when an operator deleted the window meanwhile.
  local function recount(key, at, calls, tokens)
    if calls == 0 and tokens == 0 then return end
    if the_windows[key] then
      write_windows(the_windows[key])
      the_windows[key] = nil
    end
    local ring = rings[key] or { values = {}, changed = {} }
    rings[key] = ring
    local values, changed = ring.values, ring.changed
    for i = calls == 0 and TOKENS or CALLS, TOKENS do
      local ceiling, more = CEILINGS[i], i == TOKENS and tokens or calls
      local head, sum, bucket = ceiling.head, ceiling.sum, floor(at / ceiling.width)
      local here = slot(ceiling, bucket)
      if values[here] == nil then
        local got = redis.call('HMGET', key, head, sum, here)
        values[here] = tonumber(got[3]) or 0
        if values[head] == nil then values[head], values[sum] = tonumber(got[1]) or false, tonumber(got[2]) or 0 end
      end
      more = max(more, -values[here])
      if values[head] and more ~= 0 and values[head] - bucket < BUCKETS then
        values[sum], values[here] = values[sum] + more, values[here] + more
        changed[sum], changed[here] = true, true
      end
    end
  end

  -- The record of a reservation as a table; empty if it is unknown, its state alone if nothing can change it any more.
  local function read_reservation(id)
    local flat = redis.pcall('HGETALL', name('reservation', id))
    -- No hash: finish() made a word of it.
    if flat.err then return { state = redis.call('GET', name('reservation', id)) } end
    local record = {}
    for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
    return record
  end

  -- What the reservations of the running month hold, counted anew from their records into the state.
  local function recount_held(month)
    write()
    redis.call('HSET', name('state'), 'held', '0')
    for _, id in ipairs(redis.call('ZRANGE', name('due'), 0, -1)) do
      local record = redis.call('HMGET', name('reservation', id), 'state', 'month', 'hold')
      if record[1] == 'held' and tonumber(record[2]) == month then redis.call('HINCRBY', name('state'), 'held', record[3]) end
    end
  end

  -- Those that are held no more, until they are out of `due`.
  local ended = {}

  -- Ends a reservation. `record`: what it was; `state`: a word that takes its place, for no later message changes anything; none: the record
  -- stays, which `expired` or a hit may still need.
  local function finish(id, record, state)
    if state then
      redis.call('SET', name('reservation', id), state, 'PX', KEEP_MS)
    else
      redis.call('PEXPIRE', name('reservation', id), KEEP_MS)
    end
    if record.state == 'held' then
      ended[#ended + 1] = id
      if record.in_key then redis.call('SREM', name('held_by_key', record.key_id), id) end
      if record.in_sender then redis.call('SREM', name('held_by_sender', record.source), id) end
    end
  end

  -- Changes what the windows count for a reservation, relative to its hold.
  local function recount_reservation(record, calls, tokens, sender_tokens)
    local at = tonumber(record.at)
    recount(name('key_window', record.key_id), at, calls, tokens)
    if record.sender_tokens then recount(name('sender_window', record.source), at, calls, sender_tokens) end
  end

  -- The difference of two amounts, exact: `cost` and the negated hold of a reservation, both strings. Its record serves as scratch paper.
  local function difference(id, cost, neg_hold)
    local key = name('reservation', id)
    redis.call('HSET', key, 'scratch', cost)
    redis.call('HINCRBY', key, 'scratch', neg_hold)
    local text = redis.call('HGET', key, 'scratch')
    redis.call('HDEL', key, 'scratch')
    return text
  end

  -- What a project used is counted in a hash a day; a field is `<metric>|<key id>|<model>|<sender>`, so that sums by any of them can be made of it.

  local METRICS = { 'answers', 'cost', 'input', 'cached_input', 'cache_write', 'output', 'cached', 'estimated' }
  -- Senders are named by clients: past this many fields in a day, new ones are counted together.
  local MAX_FIELDS = 40000
  local OTHERS = '(others)'
  local KEEP_DAY_S = 400 * 86400

  -- By day, key, model and sender: {key, of, source, sums}.
  local tallies = {}

  local function write_tally(tally, sums)
    local row, known = tally.of .. tally.source, false
    for _, metric in ipairs(METRICS) do
      local more = sums[metric]
      if more and more ~= '0' then
        local sum = redis.call('HINCRBY', tally.key, metric .. row, more)
        -- A field that is new, by its sum: only then can there be too many, or the first.
        if not known and sum == tonumber(more) then
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
    tallies[row] = tallies[row] or { key = key, of = of, source = record.source, sums = {} }
    for _, metric in ipairs(METRICS) do
      local more = entry[metric]
      if more and not add_to(tallies[row].sums, metric, more) then write_tally(tallies[row], { [metric] = more }) end
    end
  end

  local function write()
    for key in pairs(rings) do write_ring(key) end
    if #ended > 0 then redis.call('ZREM', name('due'), unpack(ended)) end
    for _, tally in pairs(tallies) do
      for metric, sum in pairs(tally.sums) do tally.sums[metric] = text_of(sum) end
      write_tally(tally, tally.sums)
    end
    ended, tallies = {}, {}
  end

  -- Appends to the ledger and counts it. `record`: whose it is, `month` and `at` (the instant of its admission); `entry`: kind, calls and
  -- tokens (what the key's windows count), model, and the METRICS; `more`: further fields, flat. The sum of costs is the spend of the month,
  -- the sums of calls and tokens are what the windows counted.
  local function append(id, record, entry, more)
    redis.call('XADD', name('ledger'), '*', 'id', id, 'kind', entry.kind, 'key_id', record.key_id, 'source', record.source,
      'month', record.month, 'at_ms', record.at, 'cost_nano_usd', entry.cost, 'calls', entry.calls, 'tokens', entry.tokens,
      'input_tokens', entry.input, 'output_tokens', entry.output, unpack(more))
    tally(name('spend_day', calendar().day_of(tonumber(record.at))), record, entry)
  end

  -- What a ledger record tells of a call that was never settled.
  local function call_of(record)
    return {
      'end_user', record.end_user, 'endpoint', record.endpoint, 'requested_model', record.requested_model,
      'resolved_model', record.resolved_model, 'started_at_ms', record.started_at_ms, 'model', record.resolved_model,
    }
  end

  -- A ledger entry that takes back all that a reservation was charged.
  local function taken_back(record)
    local is_hit = record.kind == 'hit'
    return {
      kind = 'correction', cost = record.neg_hold, calls = 0 - record.calls, tokens = 0 - record.tokens, input = 0 - record.input,
      output = 0 - record.output, model = record.resolved_model, answers = 0 - record.calls, cached = is_hit and -1 or 0,
      estimated = is_hit and 0 or 0 - record.calls,
    }
  end

  -- Charges holds that are due at their estimate. Their tokens and calls stay counted.
  local function charge(project, due)
    for _, id in ipairs(due) do
      local record = read_reservation(id)
      if record.state == 'held' then
        book(project, record.month, record.hold, record.neg_hold)
        local more = call_of(record)
        more[#more + 1], more[#more + 2] = 'estimated', '1'
        append(id, record, {
          kind = 'expired', cost = record.hold, calls = record.calls, tokens = record.tokens, input = record.input,
          output = record.output, model = record.resolved_model, answers = record.calls, estimated = record.calls,
        }, more)
        redis.call('HSET', name('reservation', id), 'state', 'expired')
        finish(id, record)
      else
        redis.call('ZREM', name('due'), id)
      end
    end
  end

  the_books = {
    read_reservation = read_reservation, finish = finish, recount_reservation = recount_reservation, recount_held = recount_held,
    difference = difference, append = append, write = write, write_ring = write_ring, call_of = call_of, taken_back = taken_back, charge = charge,
  }
  return the_books
end

-- Charges up to `most` holds that are due, once in a run, and says how many were.
local function expire_due(project, most)
  if project.is_swept then return 0 end
  project.is_swept = true
  local due = redis.call('ZRANGE', name('due'), '-inf', project.now, 'BYSCORE', 'LIMIT', 0, most)
  if #due > 0 then books().charge(project, due) end
  return #due
end
