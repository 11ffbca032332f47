-- Admits a call, holding what it may use, or says which limit refuses it. All or nothing: a refusal counts nothing.
--
-- The limits are read here, from the hashes that the admin API writes: they are as they are now, and no filter is trusted with them.
--
-- ARGV: 1 id, 2 key id, 3 source, 4 hold_ms, 5 calls (0: a side call, which holds money only), 6 tokens to hold, 7 money to hold (nano-USD),
-- 8 the same negated, 9 and 10 its input and output tokens, 11 endpoint, 12 requested model, 13 resolved model, 14 end user,
-- 15 started_at_ms, then the providers whose own credentials are wanted (none: all).
--
-- Answers {'admitted', requests, tokens, credentials} | {'refused', requests, tokens, limit, of_sender, retry_after_ms or -1} |
-- {'ended'} (the reservation was settled, released or has expired) | {'invalid_key'} | {'state_missing'}; requests and tokens are
-- {limit, remaining, reset_ms}, empty without such a ceiling; credentials are {provider, sealed, …}.

local id, key_id, source = ARGV[1], ARGV[2], ARGV[3]
local side_call, tokens, money = ARGV[5] == '0', tonumber(ARGV[6]), ARGV[7]

local project, why_not = open_project()
if not project then return { why_not == 'gone' and 'invalid_key' or why_not } end
local now = project.now

local key = redis.call('HMGET', name('key', key_id),
  'hash', 'revoked', 'expires_at_ms', 'calls_per_hour', 'requests_per_minute', 'tokens_per_minute')
if not key[1] or key[2] == '1' or (key[3] and tonumber(key[3]) <= now) then return { 'invalid_key' } end

expire_due(project, 16)

-- Those whose ceilings count, in the order in which they are checked.
local owners = {
  { ceilings = ceilings_of(key[4], key[5], key[6]) or {}, windows = read_windows(name('key_window', key_id), now), of_sender = 0 },
}
local of_sender = sender_ceilings(source)
if of_sender then
  owners[2] = { ceilings = of_sender, windows = read_windows(name('sender_window', source), now), of_sender = 1 }
end

-- Of the windows of the given kind that have a ceiling, the one with least left: {limit, remaining, reset_ms}.
local function least_left(first, last)
  local least = {}
  for _, owner in ipairs(owners) do
    for i = first, last do
      local limit, window = owner.ceilings[i], owner.windows[i]
      if limit then
        local left = max(limit - window.sum, 0)
        if not least[2] or left < least[2] then
          least = { limit, left, window.sum > 0 and (window.head + BUCKETS) * window.ceiling.width - now or 0 }
        end
      end
    end
  end
  return least
end

local function credentials()
  if #ARGV < 16 then return redis.call('HGETALL', name('credentials')) end
  local found, providers = {}, { unpack(ARGV, 16) }
  for i, sealed in ipairs(redis.call('HMGET', name('credentials'), unpack(providers))) do
    if sealed then
      found[#found + 1] = providers[i]
      found[#found + 1] = sealed
    end
  end
  return found
end

local function admitted()
  return { 'admitted', least_left(1, TOKENS - 1), least_left(TOKENS, TOKENS), credentials() }
end

local before = redis.call('HGET', name('reservation', id), 'state')
if before == 'held' then return admitted() end -- The same message again.
if before then return { 'ended' } end

-- ---- The checks ----

-- The first limit that refuses, and how long until none of those that refuse would; -1 if waiting does not help.
local refusal, wait = nil, 0
local function refuse(limit, by_sender, ms)
  refusal = refusal or { limit, by_sender }
  wait = (wait < 0 or not ms) and -1 or max(wait, ms)
end

-- How long until a window has room: its oldest buckets leave it one by one.
local function until_room(window, key_of_window, limit, need)
  if limit == 0 then return nil end
  local ceiling, slots = window.ceiling, {}
  for s = 0, BUCKETS - 1 do slots[s + 1] = slot(ceiling, s) end
  local counts = redis.call('HMGET', key_of_window, unpack(slots))
  local left = window.sum
  for b = window.bucket - BUCKETS + 1, window.head do
    left = left - (tonumber(counts[b % BUCKETS + 1]) or 0)
    -- Into an empty window every hold fits: it is clamped.
    if left == 0 or left + need <= limit then return (b + BUCKETS) * ceiling.width - now end
  end
  return BUCKETS * ceiling.width
end

local state = redis.call('HMGET', name('state'), 'spend', 'held')
if project.cap and tonumber(state[1]) + tonumber(state[2]) + tonumber(money) > project.cap then
  refuse('monthly_cap', 0, tonumber(money) <= project.cap and period_end(project.month, project.reset_day) - now or nil)
end

for _, owner in ipairs(owners) do
  owner.tokens = tokens
  for i, window in ipairs(owner.windows) do
    local limit = owner.ceilings[i]
    if limit then
      -- A side call takes no tokens but is refused with the call it serves, which needs one at least.
      local need = i ~= TOKENS and 1 or side_call and 1 or tokens
      if i == TOKENS and window.sum == 0 then
        need = min(need, limit)
        owner.tokens = need
      end
      if limit == 0 or window.sum + need > limit then
        refuse(window.ceiling.name, owner.of_sender, until_room(window, owner.windows.key, limit, need))
      end
    end
  end
end

if refusal then
  return { 'refused', least_left(1, TOKENS - 1), least_left(TOKENS, TOKENS), refusal[1], refusal[2], wait }
end

-- ---- The hold ----

local record = {
  'state', 'held', 'key_id', key_id, 'source', source, 'at', now, 'month', project.month,
  'calls', ARGV[5], 'tokens', side_call and 0 or owners[1].tokens,
  'hold', money, 'neg_hold', ARGV[8], 'input', ARGV[9], 'output', ARGV[10], 'endpoint', ARGV[11],
  'requested_model', ARGV[12], 'resolved_model', ARGV[13], 'end_user', ARGV[14], 'started_at_ms', ARGV[15],
}
book(project, project.month, nil, money)
if not side_call then
  for _, owner in ipairs(owners) do count(owner.windows, 1, owner.tokens) end
  if owners[2] then
    -- Its presence says that the sender's windows counted this call.
    record[#record + 1] = 'sender_tokens'
    record[#record + 1] = owners[2].tokens
  end
end
redis.call('HSET', name('reservation', id), unpack(record))
redis.call('PEXPIRE', name('reservation', id), KEEP_HELD_MS)
redis.call('ZADD', name('due'), now + tonumber(ARGV[4]), id)
return admitted()
