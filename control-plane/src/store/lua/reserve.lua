-- Admits a call, holding what it may use, or says which limit refuses it. All or nothing: a refusal counts nothing.
--
-- The limits are read here, from the hashes that the admin API writes: they are as they are now, and no filter is trusted with them.
--
-- ARGV: 1 id, 2 key id, 3 source, 4 hold_ms, 5 calls (0: a side call, which holds money only), 6 endpoint, 7 requested model, 8 end user,
-- 9 started_at_ms; 10-16 the normal alternative, 17-23 that past the soft cap; 24, 25 of a side call the
-- tokens and the money (nano-USD) of the call that it stands beside, with which it is refused; then the providers whose own credentials are wanted
-- (none: all). An alternative is: kind ('call'; 'hit': its answer is stored and charged; 'free': stored, and costs nothing; '': there is
-- none), tokens to hold, money to hold or to charge (nano-USD), the same negated, its input and output tokens, its model.
--
-- Answers {'admitted', requests, tokens, past_soft_cap, credentials} | {'hit', requests, tokens, past_soft_cap} |
-- {'refused', requests, tokens, limit, of_sender, retry_after_ms or -1} | {'ended'} (the reservation was settled, released or has expired) |
-- {'invalid_key'} | {'state_missing'} | {'window_missing', 'key' or 'sender', its id} (rewindow.lua makes it anew); requests and tokens are {limit, remaining, reset_ms}, empty without such a ceiling; credentials are
-- {provider, sealed, …}.

local id, key_id, source, side_call = ARGV[1], ARGV[2], ARGV[3], ARGV[5] == '0'
local FIRST_PROVIDER = 26
-- When a call at once ends is not known.
local PARALLEL_RETRY_MS = 1000

local function alternative(at)
  local kind, tokens, money, neg_money, input, output, model = unpack(ARGV, at, at + 6)
  if kind == '' then return nil end
  return { kind = kind, tokens = tonumber(tokens), money = money, neg_money = neg_money, input = input, output = output, model = model }
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

local project, why_not = open_project()
if not project then return { why_not == 'gone' and 'invalid_key' or why_not } end
local now = project.now

local key = hget(name('key', key_id), 'hash', 'revoked', 'expires_at_ms', 'window_until', unpack(CEILING_FIELDS))
if not key[1] or key[2] == '1' or (key[3] and tonumber(key[3]) <= now) then return { 'invalid_key' } end

expire_due(project, 16)

-- ---- Which alternative: past the soft cap the cheaper one, if there is one ----

local committed = project.spend + project.held
local want, cheaper = alternative(10), alternative(17)
local past_soft_cap = cheaper and project.soft_cap and committed >= project.soft_cap
if past_soft_cap then want = cheaper end
past_soft_cap = past_soft_cap and 1 or 0
if want.kind == 'free' then return { 'hit', {}, {}, past_soft_cap } end

-- Those whose ceilings count, in the order in which they are checked.
local owners = {
  {
    hash = name('key', key_id), ceilings = ceilings_of({ unpack(key, 5) }) or {}, windows = read_windows(name('key_window', key_id), now),
    set = name('held_by_key', key_id), field = 'key_id', id = key_id, in_set = 'in_key', of_sender = 0,
  },
}
if are_lost(owners[1].windows, key[4]) then return { 'window_missing', 'key', key_id } end
local of_sender, window_until = sender_ceilings(source)
if of_sender then
  owners[2] = {
    hash = name('sender', source), ceilings = of_sender, windows = read_windows(name('sender_window', source), now),
    set = name('held_by_sender', source), field = 'source', id = source, in_set = 'in_sender', of_sender = 1,
  }
  if are_lost(owners[2].windows, window_until) then return { 'window_missing', 'sender', source } end
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
  if project.no_credentials then return {} end
  if #ARGV < FIRST_PROVIDER then return redis.call('HGETALL', name('credentials')) end
  local found, providers = {}, { unpack(ARGV, FIRST_PROVIDER) }
  for i, sealed in ipairs(hget(name('credentials'), unpack(providers))) do
    if sealed then
      found[#found + 1] = providers[i]
      found[#found + 1] = sealed
    end
  end
  return found
end

local function reply(outcome, ...)
  return { outcome, least_left(1, TOKENS - 1), least_left(TOKENS, TOKENS), ... }
end

if redis.call('EXISTS', name('reservation', id)) == 1 then
  local before = redis.pcall('HMGET', name('reservation', id), 'state', 'kind', 'soft_cap')
  -- The same message again, or one that comes too late.
  if before[1] == 'held' then return reply('admitted', tonumber(before[3]) or 0, credentials()) end
  if before[1] == 'settled' and before[2] == 'hit' and want.kind == 'hit' then return reply('hit', tonumber(before[3]) or 0) end
  return { 'ended' }
end

-- ---- The checks ----

-- The first limit that refuses, and how long until none of those that refuse would; -1 if waiting does not help.
local refusal, wait = nil, 0
local function refuse(limit, by_sender, ms)
  refusal = refusal or { limit, by_sender }
  wait = (wait < 0 or not ms) and -1 or max(wait, ms)
end

-- How long until a window has room: its oldest buckets leave it one by one.
local function until_room(window, key_of_window, limit, need)
  local ceiling, slots = window.ceiling, {}
  for s = 0, BUCKETS - 1 do slots[s + 1] = slot(ceiling, s) end
  local counts = hget(key_of_window, unpack(slots))
  local left = window.sum
  for b = window.bucket - BUCKETS + 1, window.head do
    left = left - (tonumber(counts[b % BUCKETS + 1]) or 0)
    -- Into an empty window every hold fits: it is clamped.
    if left == 0 or left + need <= limit then return (b + BUCKETS) * ceiling.width - now end
  end
  return BUCKETS * ceiling.width
end

-- Many are refused for the same reason: each need is looked up once.
local function wait_for(window, key_of_window, limit, need)
  if limit == 0 then return nil end
  local known = window.until_room or {}
  known[need] = known[need] or until_room(window, key_of_window, limit, need)
  window.until_room = known
  return known[need]
end

local money = tonumber(want.money) + (side_call and tonumber(ARGV[25]) or 0)
if project.cap and committed + money > project.cap then
  refuse('monthly_cap', 0, money <= project.cap and project.ends - now or nil)
end

for _, owner in ipairs(owners) do
  owner.tokens = want.tokens
  for i, window in ipairs(owner.windows) do
    local limit = owner.ceilings[i]
    if limit then
      -- Side calls and hits take no tokens but are refused where a call would be, which needs one at least.
      local need = (i ~= TOKENS or want.kind == 'hit') and 1 or want.tokens
      if i == TOKENS and side_call then need = max(1, tonumber(ARGV[24])) end
      if i == TOKENS and window.sum == 0 then
        need = math.min(need, limit)
        owner.tokens = math.min(want.tokens, limit)
      end
      if limit == 0 or window.sum + need > limit then
        refuse(window.ceiling.name, owner.of_sender, wait_for(window, owner.windows.key, limit, need))
      end
    end
  end
  local parallel = owner.ceilings[PARALLEL]
  if parallel and calls_at_once(owner) >= parallel then
    refuse('max_parallel_calls', owner.of_sender, parallel > 0 and PARALLEL_RETRY_MS or nil)
  end
end

if refusal then return reply('refused', refusal[1], refusal[2], wait) end

-- ---- The hold; of a hit, the charge ----

local more = {}
local function also(field, value)
  more[#more + 1], more[#more + 2] = field, value
end
if not side_call then
  for _, owner in ipairs(owners) do
    count(project, owner.windows, owner.hash, 1, owner.tokens)
    if owner.ceilings[PARALLEL] and want.kind == 'call' then
      redis.call('SADD', owner.set, id)
      also(owner.in_set, '1')
    end
  end
  -- Its presence says that the sender counted this call.
  if owners[2] then also('sender_tokens', owners[2].tokens) end
end
local reservation = name('reservation', id)
redis.call('HSET', reservation, 'state', want.kind == 'hit' and 'settled' or 'held', 'kind', want.kind, 'soft_cap', past_soft_cap,
  'key_id', key_id, 'source', source, 'at', now, 'month', project.month, 'calls', ARGV[5], 'tokens', side_call and 0 or owners[1].tokens,
  'hold', want.money, 'neg_hold', want.neg_money, 'input', want.input, 'output', want.output, 'endpoint', ARGV[6],
  'requested_model', ARGV[7], 'resolved_model', want.model, 'end_user', ARGV[8], 'started_at_ms', ARGV[9], unpack(more))

if want.kind == 'hit' then
  book(project, project.month, want.money)
  local books = books()
  local record = books.read_reservation(id)
  local fields = books.call_of(record)
  for _, text in ipairs({ 'cached', '1', 'charged', '1' }) do fields[#fields + 1] = text end
  books.append(id, record, {
    kind = 'hit', cost = want.money, calls = 1, tokens = 0, input = 0, output = 0, model = want.model, answers = 1, cached = 1,
  }, fields)
  redis.call('PEXPIRE', reservation, KEEP_MS)
  return reply('hit', past_soft_cap)
end

book(project, project.month, nil, want.money)
held_anew[#held_anew + 1], held_anew[#held_anew + 2] = now + tonumber(ARGV[4]), id
return reply('admitted', past_soft_cap, credentials())
