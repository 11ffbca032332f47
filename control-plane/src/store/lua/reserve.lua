-- Admits a call, holding what it may use, or says which limit refuses it. All or nothing: a refusal counts nothing.
--
-- The limits are read here, from the hashes that the admin API writes: they are as they are now, and no filter is trusted with them.
--
-- `hold_ms`: until it is due; `is_side_call`: it holds money only, and is refused with the tokens and the money of the call that it stands
-- beside; then the normal alternative, that past the soft cap, and the providers whose own credentials are wanted (none: all). An
-- alternative is: kind ('call'; 'hit': its answer is stored and charged; 'free': stored, and costs nothing; nil: there is none), tokens to
-- hold, money to hold or to charge (nano-USD), its input and output tokens, its model.
--
-- Answers {'admitted', R, past_soft_cap, C} | {'hit', R, past_soft_cap} | {'refused', R, limit, of_sender, retry_after_ms or -1} | {'ended'}
-- (the reservation was settled, released or has expired) | {'invalid_key'} | {'state_missing'} | {'window_missing', 'key' or 'sender', its
-- id} (rewindow.lua makes it anew). R, of requests and then of tokens: limit, remaining, reset_ms, all false without such a ceiling; C:
-- provider, sealed, ...

-- When a call at once ends is not known.
local PARALLEL_RETRY_MS = 1000

-- ---- Whose ceilings count: keys and senders, each read once in a run ----

local function owner(kind, field, id, ceilings, window_until)
  local windows = read_windows(name(kind .. '_window', id), run.project.now)
  return {
    kind = kind, id = id, hash = name(kind, id), ceilings = ceilings, windows = windows, is_lost = are_lost(windows, window_until),
    set = name('held_by_' .. kind, id), field = field, in_set = 'in_' .. kind, of_sender = kind == 'sender' and 1 or 0,
  }
end

-- False: calls may not be made with it.
local function key_of(id)
  if run.keys[id] == nil then
    local key = redis.call('HMGET', name('key', id), 'hash', 'revoked', 'expires_at_ms', 'window_until', unpack(CEILING_FIELDS))
    local is_valid = key[1] and key[2] ~= '1' and not (key[3] and key[3] + 0 <= run.project.now)
    run.keys[id] = is_valid and owner('key', 'key_id', id, ceilings_of(unpack(key, 5, 8)) or {}, key[4])
  end
  return run.keys[id]
end

-- False: it has no ceilings.
local function sender_of(source)
  if run.senders[source] == nil then
    local ceilings, window_until = sender_ceilings(source)
    run.senders[source] = ceilings and owner('sender', 'source', source, ceilings, window_until) or false
  end
  return run.senders[source]
end

-- ---- Calls at once ----
--
-- Sets of ids rather than counters: nothing that is repeated or comes late can make them drift from the reservations' own states. There is
-- a set only where there is such a ceiling: the first admission under it makes the set of the holds there are, with an empty id in it as
-- the sign that it is made. Whoever writes ceilings removes the set.

-- How many calls of an owner are held. `field` of their records names it, `in_set` is what says that they are in the set.
local function calls_at_once(owner)
  local size = redis.call('SCARD', owner.set)
  if size > 0 then return size - 1 end
  redis.call('SADD', owner.set, '')
  for _, id in ipairs(redis.call('ZRANGE', name('due'), 0, -1)) do
    local record = read_reservation(id)
    if record.state == 'held' and record[owner.field] == owner.id and record.calls > 0 then
      redis.call('SADD', owner.set, id)
      record[owner.in_set] = true
      write_reservation(id, record)
      size = size + 1
    end
  end
  return size
end

-- ---- What is answered ----

-- Of the windows of the given kind that have a ceiling, the one with least left: limit, remaining, reset_ms.
local function least_left(owners, first, last)
  local limit, left, reset = false, false, false
  for _, owner in ipairs(owners) do
    for i = first, last do
      local ceiling, window = owner.ceilings[i], owner.windows[i]
      if ceiling then
        local remaining = max(ceiling - window.sum, 0)
        if not left or remaining < left then
          limit, left = ceiling, remaining
          reset = window.sum > 0 and (window.head + BUCKETS) * window.ceiling.width - run.project.now or 0
        end
      end
    end
  end
  return limit, left, reset
end

local function reply(owners, outcome, ...)
  local limit, left, reset = least_left(owners, 1, TOKENS - 1)
  local token_limit, tokens_left, tokens_reset = least_left(owners, TOKENS, TOKENS)
  return { outcome, limit, left, reset, token_limit, tokens_left, tokens_reset, ... }
end

-- Provider, sealed, ...; no providers: of all.
local function credentials(...)
  if run.project.no_credentials then return end
  local wanted = table.concat({ ... }, '\n')
  local found = run.credentials[wanted]
  if not found then
    found = {}
    if wanted == '' then
      found = redis.call('HGETALL', name('credentials'))
    else
      for i, secret in ipairs(redis.call('HMGET', name('credentials'), ...)) do
        if secret then found[#found + 1], found[#found + 2] = select(i, ...), secret end
      end
    end
    run.credentials[wanted] = found
  end
  return unpack(found)
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
    left = left - (counts[b % BUCKETS + 1] or 0)
    -- Into an empty window every hold fits: it is clamped.
    if left == 0 or left + need <= limit then return (b + BUCKETS) * ceiling.width - run.project.now end
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
local function refusal_of(want, owners, side_call, beside_tokens, beside_money)
  local project, refusal, wait = run.project, nil, 0
  local function refuse(limit, of_sender, ms)
    refusal = refusal or { limit, of_sender }
    wait = (wait < 0 or not ms) and -1 or max(wait, ms)
  end

  local money = want.money + (side_call and beside_money or 0)
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
        if i == TOKENS and side_call then need = max(1, beside_tokens) end
        if i == TOKENS and window.sum == 0 then
          need = min(need, limit)
          owner.tokens = min(want.tokens, limit)
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

return each(function(id, key_id, source, hold_ms, is_side_call, endpoint, requested_model, end_user, started_at_ms, beside_tokens,
  beside_money, kind, tokens, money, input, output, model, cheaper_kind, cheaper_tokens, cheaper_money, cheaper_input, cheaper_output,
  cheaper_model, ...)
  local project, why_not = open_project()
  if not project then return { why_not == 'gone' and 'invalid_key' or why_not } end
  local key = key_of(key_id)
  if not key then return { 'invalid_key' } end

  expire_due(project, 16)

  -- Past the soft cap the cheaper alternative, if there is one.
  local past_soft_cap = cheaper_kind and project.soft_cap and project.spend + project.held >= project.soft_cap and 1 or 0
  local want = { kind = kind, tokens = tokens, money = money, input = input, output = output, model = model }
  if past_soft_cap == 1 then
    want = {
      kind = cheaper_kind, tokens = cheaper_tokens, money = cheaper_money, input = cheaper_input, output = cheaper_output,
      model = cheaper_model,
    }
  end
  if want.kind == 'free' then return reply({}, 'hit', past_soft_cap) end

  -- In the order in which they are checked.
  local owners = { key, sender_of(source) or nil }
  for _, owner in ipairs(owners) do
    if owner.is_lost then return { 'window_missing', owner.kind, owner.id } end
  end

  local before = read_reservation(id)
  -- The same message again, or one that comes too late.
  if before.state == 'held' then return reply(owners, 'admitted', before.soft_cap, credentials(...)) end
  if before.state == 'settled' and before.kind == 'hit' and want.kind == 'hit' then return reply(owners, 'hit', before.soft_cap) end
  if before.state then return { 'ended' } end

  local refusal, wait = refusal_of(want, owners, is_side_call, beside_tokens, beside_money)
  if refusal then return reply(owners, 'refused', refusal[1], refusal[2], wait) end

  -- The hold; of a hit, the charge, which ends its reservation at once.
  local record = {
    state = want.kind == 'hit' and 'settled' or 'held', kind = want.kind, soft_cap = past_soft_cap, key_id = key_id, source = source,
    at = project.now, month = project.month, calls = is_side_call and 0 or 1, tokens = is_side_call and 0 or key.tokens, money = want.money,
    input = want.input, output = want.output, endpoint = endpoint, requested_model = requested_model, resolved_model = want.model,
    end_user = end_user, started_at_ms = started_at_ms,
  }
  if not is_side_call then
    for _, owner in ipairs(owners) do
      count(project, owner.windows, owner.hash, 1, owner.tokens)
      if owner.ceilings[PARALLEL] and want.kind == 'call' then
        redis.call('SADD', owner.set, id)
        record[owner.in_set] = true
      end
    end
    -- Its presence says that the sender counted this call.
    if owners[2] then record.sender_tokens = owners[2].tokens end
  end

  if want.kind == 'hit' then
    write_reservation(id, record, 'PX', KEEP_MS)
    book(project, project.month, want.money)
    append(id, record, {
      kind = 'hit', cost = want.money, calls = 1, tokens = 0, input = 0, output = 0, model = want.model, answers = 1, cached = 1,
    }, 'cached', 1, 'charged', 1, call_of(record))
    return reply(owners, 'hit', past_soft_cap)
  end
  write_reservation(id, record)
  book(project, project.month, nil, want.money)
  run.held[#run.held + 1], run.held[#run.held + 2] = project.now + hold_ms, id
  return reply(owners, 'admitted', past_soft_cap, credentials(...))
end)
