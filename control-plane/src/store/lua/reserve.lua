-- Admits a call, holding what it may use, or says which limit refuses it. All or nothing: a refusal counts nothing.
--
-- The limits are read here, from the hashes that the admin API writes: they are as they are now, and no filter is trusted with them.
--
-- A call: 1 id, 2 key id, 3 source, 4 hold_ms, 5 calls (0: a side call, which holds money only), 6 endpoint, 7 requested model, 8 end user,
-- 9 started_at_ms; 10-16 the normal alternative, 17-23 that past the soft cap; 24, 25 of a side call the
-- tokens and the money (nano-USD) of the call that it stands beside, with which it is refused; then the providers whose own credentials are wanted
-- (none: all). An alternative is: kind ('call'; 'hit': its answer is stored and charged; 'free': stored, and costs nothing; '': there is
-- none), tokens to hold, money to hold or to charge (nano-USD), the same negated, its input and output tokens, its model.
--
-- Answers {'admitted', requests, tokens, past_soft_cap, credentials} | {'hit', requests, tokens, past_soft_cap} |
-- {'refused', requests, tokens, limit, of_sender, retry_after_ms or -1} | {'ended'} (the reservation was settled, released or has expired) |
-- {'invalid_key'} | {'state_missing'} | {'window_missing', 'key' or 'sender', its id} (rewindow.lua makes it anew); requests and tokens are {limit, remaining, reset_ms}, empty without such a ceiling; credentials are
-- {provider, sealed, …}.

local FIRST_PROVIDER = 26
-- When a call at once ends is not known.
local PARALLEL_RETRY_MS = 1000

local project, why_not = open_project()

local function alternative(call, at)
  local kind, tokens, money, neg_money, input, output, model = unpack(call, at, at + 6)
  if kind == '' then return nil end
  return { kind = kind, tokens = tonumber(tokens), money = money, neg_money = neg_money, input = input, output = output, model = model }
end

-- ---- Whose ceilings count: keys and senders, each read once in a run ----

local keys, senders = {}, {}

local function owner(kind, field, id, ceilings, window_until)
  local windows = read_windows(name(kind .. '_window', id), project.now)
  return {
    kind = kind, id = id, hash = name(kind, id), ceilings = ceilings, windows = windows, is_lost = are_lost(windows, window_until),
    set = name('held_by_' .. kind, id), field = field, in_set = 'in_' .. kind, of_sender = kind == 'sender' and 1 or 0,
  }
end

-- False: calls may not be made with it.
local function key_of(id)
  if keys[id] == nil then
    local key = redis.call('HMGET', name('key', id), 'hash', 'revoked', 'expires_at_ms', 'window_until', unpack(CEILING_FIELDS))
    local is_valid = key[1] and key[2] ~= '1' and not (key[3] and tonumber(key[3]) <= project.now)
    keys[id] = is_valid and owner('key', 'key_id', id, ceilings_of({ unpack(key, 5) }) or {}, key[4])
  end
  return keys[id]
end

-- False: it has no ceilings.
local function sender_of(source)
  if senders[source] == nil then
    local ceilings, window_until = sender_ceilings(source)
    senders[source] = ceilings and owner('sender', 'source', source, ceilings, window_until) or false
  end
  return senders[source]
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

-- ---- What is answered ----

-- Of the windows of the given kind that have a ceiling, the one with least left: {limit, remaining, reset_ms}.
local function least_left(owners, first, last)
  local limit, left, reset
  for _, owner in ipairs(owners) do
    for i = first, last do
      local ceiling, window = owner.ceilings[i], owner.windows[i]
      if ceiling then
        local remaining = max(ceiling - window.sum, 0)
        if not left or remaining < left then
          limit, left = ceiling, remaining
          reset = window.sum > 0 and (window.head + BUCKETS) * window.ceiling.width - project.now or 0
        end
      end
    end
  end
  return { limit, left, reset }
end

local function reply(owners, outcome, ...)
  return { outcome, least_left(owners, 1, TOKENS - 1), least_left(owners, TOKENS, TOKENS), ... }
end

local sealed = {}

local function credentials(call)
  if project.no_credentials then return {} end
  local providers = { unpack(call, FIRST_PROVIDER) }
  local wanted = table.concat(providers, '\n')
  if sealed[wanted] then return sealed[wanted] end
  local found = {}
  if #providers == 0 then
    found = redis.call('HGETALL', name('credentials'))
  else
    for i, secret in ipairs(redis.call('HMGET', name('credentials'), unpack(providers))) do
      if secret then found[#found + 1], found[#found + 2] = providers[i], secret end
    end
  end
  sealed[wanted] = found
  return found
end

-- ---- The checks ----

-- How long until a window has room: its oldest buckets leave it one by one.
local function until_room(window, windows, limit, need)
  write_windows(windows)
  local ceiling, slots = window.ceiling, {}
  for s = 0, BUCKETS - 1 do slots[s + 1] = slot(ceiling, s) end
  local counts = redis.call('HMGET', windows.key, unpack(slots))
  local left = window.sum
  for b = window.bucket - BUCKETS + 1, window.head do
    left = left - (tonumber(counts[b % BUCKETS + 1]) or 0)
    -- Into an empty window every hold fits: it is clamped.
    if left == 0 or left + need <= limit then return (b + BUCKETS) * ceiling.width - project.now end
  end
  return BUCKETS * ceiling.width
end

-- Many are refused for the same reason: each need is looked up once.
local function wait_for(window, windows, limit, need)
  if limit == 0 then return nil end
  local known = window.until_room or {}
  known[need] = known[need] or until_room(window, windows, limit, need)
  window.until_room = known
  return known[need]
end

-- The first limit that refuses, {limit, of_sender}, and how long until none of those that refuse would; -1 if waiting does not help. Tells
-- owners how many tokens the call would take of theirs.
local function refusal_of(call, want, owners, side_call)
  local refusal, wait = nil, 0
  local function refuse(limit, of_sender, ms)
    refusal = refusal or { limit, of_sender }
    wait = (wait < 0 or not ms) and -1 or max(wait, ms)
  end

  local money = tonumber(want.money) + (side_call and tonumber(call[25]) or 0)
  if project.cap and project.spend + project.held + money > project.cap then
    refuse('monthly_cap', 0, money <= project.cap and project.ends - project.now or nil)
  end

  for _, owner in ipairs(owners) do
    owner.tokens = want.tokens
    for i, window in ipairs(owner.windows) do
      local limit = owner.ceilings[i]
      if limit then
        -- Side calls and hits take no tokens but are refused where a call would be, which needs one at least.
        local need = (i ~= TOKENS or want.kind == 'hit') and 1 or want.tokens
        if i == TOKENS and side_call then need = max(1, tonumber(call[24])) end
        if i == TOKENS and window.sum == 0 then
          need = math.min(need, limit)
          owner.tokens = math.min(want.tokens, limit)
        end
        if limit == 0 or window.sum + need > limit then
          refuse(window.ceiling.name, owner.of_sender, wait_for(window, owner.windows, limit, need))
        end
      end
    end
    local parallel = owner.ceilings[PARALLEL]
    if parallel and calls_at_once(owner) >= parallel then
      refuse('max_parallel_calls', owner.of_sender, parallel > 0 and PARALLEL_RETRY_MS or nil)
    end
  end
  return refusal, wait
end

-- Charges a stored answer, which ends its reservation at once.
local function charge_hit(id, want)
  book(project, project.month, want.money)
  local books = books()
  local record = books.read_reservation(id)
  local fields = books.call_of(record)
  for _, text in ipairs({ 'cached', '1', 'charged', '1' }) do fields[#fields + 1] = text end
  books.append(id, record, {
    kind = 'hit', cost = want.money, calls = 1, tokens = 0, input = 0, output = 0, model = want.model, answers = 1, cached = 1,
  }, fields)
  redis.call('PEXPIRE', name('reservation', id), KEEP_MS)
end

return each(function(call)
  if not project then return { why_not == 'gone' and 'invalid_key' or why_not } end
  local id, key_id, source, side_call = call[1], call[2], call[3], call[5] == '0'
  local key = key_of(key_id)
  if not key then return { 'invalid_key' } end

  expire_due(project, 16)

  -- Past the soft cap the cheaper alternative, if there is one.
  local want, cheaper = alternative(call, 10), alternative(call, 17)
  local past_soft_cap = cheaper and project.soft_cap and project.spend + project.held >= project.soft_cap
  if past_soft_cap then want = cheaper end
  past_soft_cap = past_soft_cap and 1 or 0
  if want.kind == 'free' then return { 'hit', {}, {}, past_soft_cap } end

  -- In the order in which they are checked.
  local owners = { key, sender_of(source) or nil }
  for _, owner in ipairs(owners) do
    if owner.is_lost then return { 'window_missing', owner.kind, owner.id } end
  end

  local reservation = name('reservation', id)
  if redis.call('EXISTS', reservation) == 1 then
    local before = redis.pcall('HMGET', reservation, 'state', 'kind', 'soft_cap')
    -- The same message again, or one that comes too late.
    if before[1] == 'held' then return reply(owners, 'admitted', tonumber(before[3]) or 0, credentials(call)) end
    if before[1] == 'settled' and before[2] == 'hit' and want.kind == 'hit' then return reply(owners, 'hit', tonumber(before[3]) or 0) end
    return { 'ended' }
  end

  local refusal, wait = refusal_of(call, want, owners, side_call)
  if refusal then return reply(owners, 'refused', refusal[1], refusal[2], wait) end

  -- The hold; of a hit, the charge.
  local more = {}
  if not side_call then
    for _, owner in ipairs(owners) do
      count(project, owner.windows, owner.hash, 1, owner.tokens)
      if owner.ceilings[PARALLEL] and want.kind == 'call' then
        redis.call('SADD', owner.set, id)
        more[#more + 1], more[#more + 2] = owner.in_set, '1'
      end
    end
    -- Its presence says that the sender counted this call.
    if owners[2] then more[#more + 1], more[#more + 2] = 'sender_tokens', owners[2].tokens end
  end
  redis.call('HSET', reservation, 'state', want.kind == 'hit' and 'settled' or 'held', 'kind', want.kind, 'soft_cap', past_soft_cap,
    'key_id', key_id, 'source', source, 'at', project.now, 'month', project.month, 'calls', call[5], 'tokens', side_call and 0 or key.tokens,
    'hold', want.money, 'neg_hold', want.neg_money, 'input', want.input, 'output', want.output, 'endpoint', call[6],
    'requested_model', call[7], 'resolved_model', want.model, 'end_user', call[8], 'started_at_ms', call[9], unpack(more))

  if want.kind == 'hit' then
    charge_hit(id, want)
    return reply(owners, 'hit', past_soft_cap)
  end
  book(project, project.month, nil, want.money)
  held_anew[#held_anew + 1], held_anew[#held_anew + 2] = project.now + tonumber(call[4]), id
  return reply(owners, 'admitted', past_soft_cap, credentials(call))
end)
