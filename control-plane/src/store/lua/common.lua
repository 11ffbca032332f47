-- What the functions share: the project's state and the windows.
--
-- Money is in nano-USD. A Lua number is a double, exact below 2^53: one amount and a cap are, sums may not be. HINCRBY and sums.lua alone
-- add, and what is compared with a cap only matters below it. Tokens and instants stay far below.

-- A final record stays this long, so that a repeated or late message finds it.
local KEEP_MS = 2 * 3600 * 1000

-- ---- The project: its clock, its month, its money ----

-- The project's state as it stands, or nil and why not: 'gone' (deleted), 'state_missing' (never taken for a spend of zero). What ends
-- calls needs no more: a month that is over, but not yet rolled on, takes what is booked to it along when it is. Read once in a run.
local function read_state()
  if run.project then return run.project end
  local state = redis.call('HMGET', name('state'), 'month', 'spend', 'held', 'clock_ms', 'no_credentials', 'ends_ms',
    'ends_of')
  if not (state[1] and state[2] and state[3]) then
    return nil, redis.call('EXISTS', name('project')) == 0 and 'gone' or 'state_missing'
  end
  run.project = {
    month = state[1] + 0, spend = state[2] + 0, held = state[3] + 0, clock = (state[4] or 0) + 0, no_credentials = state[5],
    ends = (state[6] or 0) + 0, ends_of = state[7], now = nil, cap = nil, soft_cap = nil, is_swept = false,
  }
  return run.project
end

-- Puts the month to now: forward only, for a later reset day must not bring a month back that is over.
local function roll(project, reset_day)
  local day = tonumber(reset_day)
  local month = period_of(project.now, day)
  if month > project.month then
    project.month, project.spend, project.held = month, 0, 0
    redis.call('HSET', name('state'), 'month', month, 'spend', '0', 'held', '0')
    -- What was booked in this run was the old month's.
    run.sums[name('state')] = nil
  end
  project.ends, project.ends_of = period_end(project.month, day), reset_day
  redis.call('HSET', name('state'), 'ends_ms', project.ends, 'ends_of', reset_day)
end

-- Puts a state's clock and month to now. The clock never steps back: it is the later of Redis' own and the last instant at which the
-- project counted a call. False if the project is gone. A run has one instant.
local function bring_up_to_date(project)
  if project.now then return true end
  local time = redis.call('TIME')
  local now = max(time[1] * 1000 + floor(time[2] / 1000), project.clock)
  local settings = redis.call('HMGET', name('project'), 'monthly_cap', 'reset_day', 'soft_cap')
  -- Never taken for a project without a cap. Each is made with a reset day; older ones may be without.
  if not settings[2] and redis.call('EXISTS', name('project')) == 0 then return false end
  project.now, project.cap, project.soft_cap = now, settings[1] and settings[1] + 0, settings[3] and settings[3] + 0
  -- The calendar is asked once a month, and when the reset day changes.
  local reset_day = settings[2] or '1'
  if project.now >= project.ends or project.ends_of ~= reset_day then roll(project, reset_day) end
  return true
end

-- The project as of now, or nil and why not, as in read_state.
local function open_project()
  local project, why_not = read_state()
  if project and not bring_up_to_date(project) then return nil, 'gone' end
  return project, why_not
end

-- Adds to the month that `month` names; nil for none. The month's own counter keeps what was spent for ever, also once the month is over;
-- the state is that of the running month.
local function book(project, month, spend, held)
  if spend then hincrby(name('spend_month', month), 'spend', spend) end
  if month ~= project.month then return end
  if spend then
    hincrby(name('state'), 'spend', spend)
    project.spend = project.spend + spend
  end
  if held then
    hincrby(name('state'), 'held', held)
    project.held = project.held + held
  end
end

-- ---- Sliding windows ----
--
-- A hash per key or sender; each ceiling has a ring of 61 buckets in it (the running one and the 60 before), the sum of the ring and the
-- number of its newest bucket, the head. A bucket is an instant divided by the width; it is in the ring while it is less than 61
-- behind the head. Moving the head on costs the buckets that went by, once each.

local BUCKETS = 61

-- Numbers become texts slowly.
local function slots_of(tag)
  local slots = {}
  for s = 0, BUCKETS - 1 do slots[s] = tag .. s end
  return slots
end

local CEILINGS = {
  { name = 'calls_per_hour', slots = slots_of('c'), head = 'c_head', sum = 'c_sum', width = 60000 },
  { name = 'requests_per_minute', slots = slots_of('r'), head = 'r_head', sum = 'r_sum', width = 1000 },
  { name = 'tokens_per_minute', slots = slots_of('t'), head = 't_head', sum = 't_sum', width = 1000 },
}
local CALLS, TOKENS = 1, 3
-- More than the longest window and the minute after which it is given anew.
local WINDOW_TTL_S = 3800

local function slot(ceiling, bucket)
  return ceiling.slots[bucket % BUCKETS]
end

-- Writes the past buckets of a window that changed in this run.
local function write_ring(key)
  local ring, fields = run.rings[key], {}
  if not ring then return end
  run.rings[key] = nil
  for field in pairs(ring.changed) do fields[#fields + 1], fields[#fields + 2] = field, ring.values[field] end
  if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
end

-- One window as of now, from what Redis has of it. What its ring has passed since goes into `passed`: slots, and whose they are.
local function read_window(ceiling, bucket, head, sum, here, passed)
  local window = {
    ceiling = ceiling, bucket = bucket, slot = slot(ceiling, bucket), head = head and head + 0 or bucket - BUCKETS, sum = (sum or 0) + 0,
    here = (here or 0) + 0, until_room = nil,
  }
  -- A window that is not there has nothing to forget.
  if head and bucket > window.head then
    for b = max(window.head, bucket - BUCKETS) + 1, bucket do
      local at = #passed.slots + 1
      passed.slots[at], passed.windows[at] = slot(ceiling, b), window
    end
    window.here = 0
    if bucket - window.head >= BUCKETS then window.sum = 0 end
  end
  return window
end

-- The windows of a key or sender as of now, one for each ceiling; those of a run are of one instant.
local function read_windows(key, now)
  if run.windows[key] then return run.windows[key] end
  write_ring(key)
  local calls, requests, tokens = unpack(CEILINGS)
  local minute, second = floor(now / calls.width), floor(now / requests.width)
  local got = redis.call('HMGET', key, 'c_head', 'c_sum', slot(calls, minute), 'r_head', 'r_sum', slot(requests, second),
    't_head', 't_sum', slot(tokens, second))
  local passed = { slots = {}, windows = {} }
  local windows = {
    read_window(calls, minute, got[1], got[2], got[3], passed),
    read_window(requests, second, got[4], got[5], got[6], passed),
    read_window(tokens, second, got[7], got[8], got[9], passed),
    key = key, now = now, absent = not (got[1] or got[4] or got[7]), gone = nil, counted = false, moved = false,
    is_new_minute = false,
  }
  if #passed.slots > 0 then
    windows.gone = {}
    for i, had in ipairs(redis.call('HMGET', key, unpack(passed.slots))) do
      if had then
        windows.gone[#windows.gone + 1] = passed.slots[i]
        local window = passed.windows[i]
        if window.sum ~= 0 then window.sum = window.sum - had end
      end
    end
  end
  run.windows[key] = windows
  return windows
end

-- Whether windows are gone that must be there: their absence is never taken for no call. `window_until`: of their key or sender.
local function are_lost(windows, window_until)
  return windows.absent and window_until and window_until + 0 > windows.now
end

-- Writes the calls that were counted in these and that Redis does not know of yet.
local function write_windows(windows)
  if not windows.counted then return end
  windows.counted = false
  -- Before the new counts: a slot that is gone is the new one's, where the ring has come round.
  if windows.gone and #windows.gone > 0 then redis.call('HDEL', windows.key, unpack(windows.gone)) end
  local calls, requests, tokens = unpack(windows)
  local heads = windows.moved and { 'c_head', calls.head, 'r_head', requests.head, 't_head', tokens.head } or {}
  redis.call('HSET', windows.key, 'c_sum', calls.sum, calls.slot, calls.here, 'r_sum', requests.sum, requests.slot, requests.here,
    't_sum', tokens.sum, tokens.slot, tokens.here, unpack(heads))
  if windows.is_new_minute then redis.call('EXPIRE', windows.key, WINDOW_TTL_S) end
  windows.gone, windows.moved, windows.is_new_minute = nil, false, false
end

-- Counts a call now, in windows that were read now. `owner`: the hash of the key or sender, which is told until when the windows are to be
-- there; nil if it may be gone.
local function count(project, windows, owner, calls, tokens)
  windows.counted, windows.absent = true, false
  for i, window in ipairs(windows) do
    local more = i == TOKENS and tokens or calls
    window.sum, window.here, window.until_room = window.sum + more, window.here + more, nil
    if window.head ~= window.bucket then
      window.head, windows.moved = window.bucket, true
      windows.is_new_minute = windows.is_new_minute or i == CALLS
      if i == CALLS and owner then redis.call('HSET', owner, 'window_until', windows.now + BUCKETS * CEILINGS[CALLS].width) end
    end
  end
  -- The heads must never be ahead of the clock; theirs is a matter of seconds.
  if floor(windows.now / 1000) > floor(project.clock / 1000) then
    redis.call('HSET', name('state'), 'clock_ms', windows.now)
    project.clock = windows.now
  end
end

-- The fields of a key's or sender's hash: the windows in the order of CEILINGS, then the calls at once.
local CEILING_FIELDS = { 'calls_per_hour', 'requests_per_minute', 'tokens_per_minute', 'max_parallel_calls' }
local PARALLEL = 4

-- The ceilings of a key or sender from the values of those fields; nil if it has none.
local function ceilings_of(calls, requests, tokens, parallel)
  if not (calls or requests or tokens or parallel) then return nil end
  return { calls and calls + 0, requests and requests + 0, tokens and tokens + 0, parallel and parallel + 0 }
end

-- And until when its windows are to be there.
local function sender_ceilings(source)
  if source == '' then return nil end
  local values = redis.call('HMGET', name('sender', source), 'window_until', unpack(CEILING_FIELDS))
  return ceilings_of(unpack(values, 2, 5)), values[1]
end
