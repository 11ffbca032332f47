-- Hashes that a run reads and changes for many calls: each field is read once and written once, at the end, by write(). Nothing in the run
-- touches these hashes by other ways, unless it writes first. scripts.rs puts this before common.lua.
--
-- Sums stay exact: a Lua number is so below 2^53, and what would pass that is added at once, as the string that it is.

local EXACT = 2 ^ 53
local hashes = {}
-- What else is to be done at the end.
local writers = {}

local function hash_at(key)
  local hash = hashes[key]
  if not hash then
    hash = { values = {}, changed = {}, sums = {} }
    hashes[key] = hash
  end
  return hash
end

-- As HMGET: false for a field that is not there.
local function hget(key, ...)
  local values, fields, unread, got = hash_at(key).values, { ... }, {}, {}
  for _, field in ipairs(fields) do
    if values[field] == nil then unread[#unread + 1] = field end
  end
  if #unread > 0 then
    for i, value in ipairs(redis.call('HMGET', key, unpack(unread))) do values[unread[i]] = value end
  end
  for i, field in ipairs(fields) do got[i] = values[field] end
  return got
end

-- As HSET; false removes a field.
local function hset(key, ...)
  local hash, fields = hash_at(key), { ... }
  for i = 1, #fields, 2 do
    hash.values[fields[i]], hash.changed[fields[i]], hash.sums[fields[i]] = fields[i + 1], true, nil
  end
end

-- As EXPIRE.
local function expire(key, seconds)
  hash_at(key).seconds = seconds
end

-- Adds to a sum of these. False: it would not be exact.
local function add_to(sums, field, amount)
  local sum = (sums[field] or 0) + tonumber(amount)
  if math.abs(sum) >= EXACT then return false end
  sums[field] = sum
  return true
end

local function text_of(sum)
  return string.format('%.0f', sum)
end

local function write_hash(key, hash)
  local gone, set = {}, {}
  for field in pairs(hash.changed) do
    if hash.values[field] then
      set[#set + 1], set[#set + 2] = field, hash.values[field]
    else
      gone[#gone + 1] = field
    end
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  if #set > 0 then redis.call('HSET', key, unpack(set)) end
  if hash.seconds then redis.call('EXPIRE', key, hash.seconds) end
  for field, sum in pairs(hash.sums) do redis.call('HINCRBY', key, field, text_of(sum)) end
  hash.changed, hash.seconds, hash.sums = {}, nil, {}
end

-- As HINCRBY, of a field that hget() is not asked for. `amount` may be a string.
local function hincrby(key, field, amount)
  local hash = hash_at(key)
  if not add_to(hash.sums, field, amount) then
    write_hash(key, hash)
    redis.call('HINCRBY', key, field, amount)
  end
end

-- Writes all that waits.
local function write()
  for key, hash in pairs(hashes) do write_hash(key, hash) end
  hashes = {}
  for _, write_some in ipairs(writers) do write_some() end
end

-- Does `one` for each call in ARGV, in their order, as if each came alone; what fails one is its answer alone, {'error', why}. A call is
-- the number of its arguments, then these.
local function each(one)
  local answers, at = {}, 1
  while at <= #ARGV do
    local last = at + tonumber(ARGV[at])
    local done, answer = pcall(one, { unpack(ARGV, at + 1, last) })
    answers[#answers + 1] = done and answer or { 'error', type(answer) == 'table' and answer.err or tostring(answer) }
    at = last + 1
  end
  write()
  return answers
end
