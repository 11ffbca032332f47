-- What reserve, settle, release and expire share. scripts.rs puts this before each of them, and NAMES before this.
--
-- KEYS[1] is what every name of the project begins with; all of them are in its hash slot.
--
-- Money (nano-USD) is a string from end to end and is added by HINCRBY alone: a Lua number is a double, exact only below 2^53. It becomes
-- a number for a comparison with a cap, and caps are below 2^53. Tokens and instants stay far below and may be numbers.

local floor, max, min = math.floor, math.max, math.min

local function name(kind, id)
  return KEYS[1] .. NAMES[kind] .. (id or '')
end

-- A final record stays this long, so that a repeated or late message finds it.
local KEEP_MS = 2 * 3600 * 1000
-- The record of a hold is ended by a settlement or by expiry, not by time; this only bounds what a deleted project leaves.
local KEEP_HELD_MS = 7 * 24 * 3600 * 1000

-- ---- Calendar (proleptic Gregorian, UTC; Howard Hinnant's days_from_civil and its inverse) ----

local DAY_MS = 86400000

local function days_of(year, month, day)
  if month <= 2 then year = year - 1 end
  local era = floor(year / 400)
  local of_era = year - era * 400
  local of_year = floor((153 * (month > 2 and month - 3 or month + 9) + 2) / 5) + day - 1
  return era * 146097 + of_era * 365 + floor(of_era / 4) - floor(of_era / 100) + of_year - 719468
end

local function date_of(days)
  days = days + 719468
  local era = floor(days / 146097)
  local of_era = days - era * 146097
  local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
  local shifted = floor((5 * of_year + 2) / 153)
  local month = shifted < 10 and shifted + 3 or shifted - 9
  return year + era * 400 + (month <= 2 and 1 or 0), month, of_year - floor((153 * shifted + 2) / 5) + 1
end

local function month_after(year, month)
  if month == 12 then return year + 1, 1 end
  return year, month + 1
end

-- The day on which the period of this month begins: the reset day, or the month's last day if it has fewer.
local function first_day(year, month, reset_day)
  local start = days_of(year, month, 1)
  local next_year, next_month = month_after(year, month)
  local length = days_of(next_year, next_month, 1) - start
  return start + min(reset_day, length) - 1
end

-- The period of an instant, named by the month it began in: 202611.
local function period_of(ms, reset_day)
  local today = floor(ms / DAY_MS)
  local year, month = date_of(today)
  if today < first_day(year, month, reset_day) then
    if month == 1 then year, month = year - 1, 12 else month = month - 1 end
  end
  return year * 100 + month
end

-- The instant at which the period after this one begins.
local function period_end(period, reset_day)
  local year, month = month_after(floor(period / 100), period % 100)
  return first_day(year, month, reset_day) * DAY_MS
end

-- ---- The project: its clock, its month, its money ----

-- The project's state as it stands, or nil and why not: 'gone' (deleted), 'state_missing' (never taken for a spend of zero). What ends
-- calls needs no more: a month that is over, but not yet rolled on, takes what is booked to it along when it is.
local function read_state()
  local state = redis.call('HMGET', name('state'), 'month', 'spend', 'held', 'clock_ms', 'no_credentials')
  if not (state[1] and state[2] and state[3]) then
    return nil, redis.call('EXISTS', name('project')) == 0 and 'gone' or 'state_missing'
  end
  return {
    month = tonumber(state[1]), spend = state[2], held = state[3], clock = tonumber(state[4]) or 0, no_credentials = state[5],
  }
end

-- Puts a state's clock and month to now. The clock never steps back: it is the later of Redis' own and the last instant at which the
-- project counted a call. False if the project is gone.
local function bring_up_to_date(project)
  local time = redis.call('TIME')
  project.now = max(tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000), project.clock)
  local settings = redis.call('HMGET', name('project'), 'monthly_cap', 'reset_day', 'soft_cap')
  -- Never taken for a project without a cap. Each is made with a reset day; older ones may be without.
  if not settings[2] and redis.call('EXISTS', name('project')) == 0 then return false end
  project.cap = tonumber(settings[1])
  project.reset_day = tonumber(settings[2]) or 1
  project.soft_cap = tonumber(settings[3])
  -- Forward only: a later reset day must not bring a month back that is over.
  local month = period_of(project.now, project.reset_day)
  if month > project.month then
    project.month, project.spend, project.held = month, '0', '0'
    redis.call('HSET', name('state'), 'month', month, 'spend', '0', 'held', '0')
  end
  return true
end

-- The project as of now, or nil and why not, as in read_state.
local function open_project()
  local project, why_not = read_state()
  if project and not bring_up_to_date(project) then return nil, 'gone' end
  return project, why_not
end

-- Adds to the month that `month` names. Amounts are strings, nil for none. The month's own counter keeps what was spent for ever, also
-- once the month is over; the state is that of the running month.
local function book(project, month, spend, held)
  if spend then redis.call('HINCRBY', name('spend_month', month), 'spend', spend) end
  if tonumber(month) ~= project.month then return end
  if spend then project.spend = redis.call('HINCRBY', name('state'), 'spend', spend) end
  if held then project.held = redis.call('HINCRBY', name('state'), 'held', held) end
end

-- ---- Sliding windows ----
--
-- A hash per key or sender; each ceiling has a ring of 61 buckets in it (the running one and the 60 before), the sum of the ring and the
-- number of its newest bucket, the head. A bucket is an instant divided by the width; it is in the ring while it is less than 61
-- behind the head. Moving the head on costs the buckets that went by, once each.

local CEILINGS = {
  { name = 'calls_per_hour', tag = 'c', width = 60000 },
  { name = 'requests_per_minute', tag = 'r', width = 1000 },
  { name = 'tokens_per_minute', tag = 't', width = 1000 },
}
local CALLS, TOKENS = 1, 3
local BUCKETS = 61
-- More than the longest window and the minute after which it is given anew.
local WINDOW_TTL_S = 3800

local function slot(ceiling, bucket)
  return ceiling.tag .. (bucket % BUCKETS)
end

-- The windows of a key or sender as of now, one for each ceiling. Writes nothing.
local function read_windows(key, now)
  local fields = {}
  for _, ceiling in ipairs(CEILINGS) do
    fields[#fields + 1] = ceiling.tag .. '_head'
    fields[#fields + 1] = ceiling.tag .. '_sum'
    fields[#fields + 1] = slot(ceiling, floor(now / ceiling.width))
  end
  local got = redis.call('HMGET', key, unpack(fields))

  local windows = { key = key, now = now, gone = {} }
  local passed, passed_of = {}, {}
  local gone = windows.gone
  for i, ceiling in ipairs(CEILINGS) do
    local bucket = floor(now / ceiling.width)
    local head = tonumber(got[3 * i - 2]) or bucket - BUCKETS
    local window = { ceiling = ceiling, bucket = bucket, head = head }
    window.sum = tonumber(got[3 * i - 1]) or 0
    window.here = tonumber(got[3 * i]) or 0
    if bucket > head then window.here = 0 end
    if bucket - head >= BUCKETS then window.sum = 0 end
    -- A window that is not there has nothing to forget.
    for b = got[3 * i - 2] and max(head, bucket - BUCKETS) + 1 or bucket + 1, bucket do
      passed[#passed + 1] = slot(ceiling, b)
      passed_of[#passed_of + 1] = window
    end
    windows[i] = window
  end
  if #passed > 0 then
    for i, had in ipairs(redis.call('HMGET', key, unpack(passed))) do
      if had then
        gone[#gone + 1] = passed[i]
        local window = passed_of[i]
        if window.sum ~= 0 then window.sum = window.sum - tonumber(had) end
      end
    end
  end
  return windows
end

-- Counts a call now, in windows that were read now.
local function count(project, windows, calls, tokens)
  local fields = {}
  for i, window in ipairs(windows) do
    local more = i == TOKENS and tokens or calls
    local tag = window.ceiling.tag
    window.sum, window.here = window.sum + more, window.here + more
    if window.head ~= window.bucket then
      fields[#fields + 1], fields[#fields + 2] = tag .. '_head', window.bucket
    end
    if more ~= 0 then
      fields[#fields + 1], fields[#fields + 2] = tag .. '_sum', window.sum
      fields[#fields + 1], fields[#fields + 2] = slot(window.ceiling, window.bucket), window.here
    elseif window.head ~= window.bucket then
      fields[#fields + 1], fields[#fields + 2] = tag .. '_sum', window.sum
    end
  end
  -- Before the new counts: a slot that is gone is the new one's, where the ring has come round.
  if #windows.gone > 0 then redis.call('HDEL', windows.key, unpack(windows.gone)) end
  redis.call('HSET', windows.key, unpack(fields))
  if windows[CALLS].head ~= windows[CALLS].bucket then redis.call('EXPIRE', windows.key, WINDOW_TTL_S) end
  for _, window in ipairs(windows) do window.head = window.bucket end
  -- The heads must never be ahead of the clock; theirs is a matter of seconds.
  if floor(windows.now / 1000) > floor(project.clock / 1000) then
    redis.call('HSET', name('state'), 'clock_ms', windows.now)
    project.clock = windows.now
  end
end

-- Changes what a call counts that was admitted at `at`, in the bucket of that instant; nothing where that bucket is gone. A bucket never
-- falls below zero, even when an operator deleted the window meanwhile.
local function recount(key, at, calls, tokens)
  if calls == 0 and tokens == 0 then return end
  local fields = {}
  for _, ceiling in ipairs(CEILINGS) do
    fields[#fields + 1] = ceiling.tag .. '_head'
    fields[#fields + 1] = ceiling.tag .. '_sum'
    fields[#fields + 1] = slot(ceiling, floor(at / ceiling.width))
  end
  local got, changed = redis.call('HMGET', key, unpack(fields)), {}
  for i, ceiling in ipairs(CEILINGS) do
    local head, sum, here = tonumber(got[3 * i - 2]), tonumber(got[3 * i - 1]) or 0, tonumber(got[3 * i]) or 0
    local more = max(i == TOKENS and tokens or calls, -here)
    if head and more ~= 0 and head - floor(at / ceiling.width) < BUCKETS then
      changed[#changed + 1], changed[#changed + 2] = fields[3 * i - 1], sum + more
      changed[#changed + 1], changed[#changed + 2] = fields[3 * i], here + more
    end
  end
  if #changed > 0 then redis.call('HSET', key, unpack(changed)) end
end

-- The fields of a key's or sender's hash: the windows in the order of CEILINGS, then the calls at once.
local CEILING_FIELDS = { 'calls_per_hour', 'requests_per_minute', 'tokens_per_minute', 'max_parallel_calls' }
local PARALLEL = 4

-- The ceilings of a key or sender from the values of those fields; nil if it has none.
local function ceilings_of(values)
  local all, any = {}, nil
  for i in ipairs(CEILING_FIELDS) do
    all[i] = tonumber(values[i])
    any = any or all[i]
  end
  return any and all
end

local function sender_ceilings(source)
  if source == '' then return nil end
  return ceilings_of(redis.call('HMGET', name('sender', source), unpack(CEILING_FIELDS)))
end

-- ---- Reservations and the ledger ----

-- The record of a reservation as a table; empty if it is unknown, its state alone if nothing can change it any more.
local function read_reservation(id)
  local flat = redis.pcall('HGETALL', name('reservation', id))
  -- No hash: finish() made a word of it.
  if flat.err then return { state = redis.call('GET', name('reservation', id)) } end
  local record = {}
  for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end
  return record
end

-- ---- Calls at once ----
--
-- Sets of ids rather than counters: nothing that is repeated or comes late can make them drift from the reservations' own states. There is
-- a set only where there is such a ceiling: the first admission under it makes the set of the holds there are, with an empty id in it as
-- the sign that it is made. Whoever writes ceilings removes the set.

-- How many calls of an owner are held. `field` of their records names it, `in_set` is the field that says that they are in the set.
local function calls_at_once(owner)
  local size = redis.call('SCARD', owner.set)
  if size > 0 then return size - 1 end
  redis.call('SADD', owner.set, '')
  redis.call('PEXPIRE', owner.set, KEEP_HELD_MS)
  for _, id in ipairs(redis.call('ZRANGE', name('due'), 0, -1)) do
    local record = redis.call('HMGET', name('reservation', id), 'state', owner.field, 'calls')
    if record[1] == 'held' and record[2] == owner.id and record[3] ~= '0' then
      redis.call('SADD', owner.set, id)
      redis.call('HSET', name('reservation', id), owner.in_set, '1')
      size = size + 1
    end
  end
  return size
end

-- What the reservations of the running month hold, counted anew from their records into the state.
local function recount_held(month)
  redis.call('HSET', name('state'), 'held', '0')
  for _, id in ipairs(redis.call('ZRANGE', name('due'), 0, -1)) do
    local record = redis.call('HMGET', name('reservation', id), 'state', 'month', 'hold')
    if record[1] == 'held' and tonumber(record[2]) == month then redis.call('HINCRBY', name('state'), 'held', record[3]) end
  end
end

-- Ends a reservation. `record`: what it was; `state`: a word that takes its place, for no later message changes anything; none: the record
-- stays, which `expired` or a hit may still need.
local function finish(id, record, state)
  if state then
    redis.call('SET', name('reservation', id), state, 'PX', KEEP_MS)
  else
    redis.call('PEXPIRE', name('reservation', id), KEEP_MS)
  end
  if record.state == 'held' then
    redis.call('ZREM', name('due'), id)
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

-- ---- Spend: what a project used, by day and by month ----
--
-- A hash a day; a field is `<metric>|<key id>|<model>|<sender>`, so that sums by any of them can be made of it.

local METRICS = { 'answers', 'cost', 'input', 'cached_input', 'cache_write', 'output', 'cached', 'estimated' }
-- Senders are named by clients: past this many fields in a day, new ones are counted together.
local MAX_FIELDS = 40000
local OTHERS = '(others)'
local KEEP_DAY_S = 400 * 86400

local function day_of(ms)
  local year, month, day = date_of(floor(ms / DAY_MS))
  return year * 10000 + month * 100 + day
end

local function tally(key, record, entry)
  local of = '|' .. record.key_id .. '|' .. entry.model .. '|'
  local row, known = of .. record.source, false
  for _, metric in ipairs(METRICS) do
    local more = entry[metric]
    if more and more ~= 0 and more ~= '0' then
      local sum = redis.call('HINCRBY', key, metric .. row, more)
      -- A field that is new, by its sum: only then can there be too many, or the first.
      if not known and sum == tonumber(more) then
        local fields = redis.call('HLEN', key)
        if fields == 1 then redis.call('EXPIRE', key, KEEP_DAY_S) end
        if fields > MAX_FIELDS and record.source ~= OTHERS then
          redis.call('HDEL', key, metric .. row)
          row = of .. OTHERS
          redis.call('HINCRBY', key, metric .. row, more)
        end
      end
      known = true
    end
  end
end

-- Appends to the ledger and counts it. `record`: whose it is, `month` and `at` (the instant of its admission); `entry`: kind, calls and
-- tokens (what the key's windows count), model, and the METRICS; `more`: further fields, flat. The sum of costs is the spend of the month,
-- the sums of calls and tokens are what the windows counted.
local function append(id, record, entry, more)
  redis.call('XADD', name('ledger'), '*', 'id', id, 'kind', entry.kind, 'key_id', record.key_id, 'source', record.source,
    'month', record.month, 'at_ms', record.at, 'cost_nano_usd', entry.cost, 'calls', entry.calls, 'tokens', entry.tokens,
    'input_tokens', entry.input, 'output_tokens', entry.output, unpack(more))
  tally(name('spend_day', day_of(tonumber(record.at))), record, entry)
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

-- Charges up to `most` holds that are due at their estimate, and says how many were. Their tokens and calls stay counted.
local function expire_due(project, most)
  local due = redis.call('ZRANGE', name('due'), '-inf', project.now, 'BYSCORE', 'LIMIT', 0, most)
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
  return #due
end
