-- Many calls in one run: what they have in common is read once, and what they add to it is written once, at the end. scripts.rs puts this
-- before common.lua.

-- What is to be done at the end.
local writers = {}

local function write()
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

-- ---- Sums: exact, for a Lua number is so below 2^53, and what would pass that is added at once, as the string that it is ----

local EXACT = 2 ^ 53

-- False: it would not be exact.
local function add_to(sums, field, amount)
  local sum = (sums[field] or 0) + tonumber(amount)
  if math.abs(sum) >= EXACT then return false end
  sums[field] = sum
  return true
end

local function text_of(sum)
  return string.format('%.0f', sum)
end

-- Fields of hashes, by the hash.
local sums_of = {}

-- As HINCRBY, at the end. `amount` may be a string.
local function hincrby(key, field, amount)
  local sums = sums_of[key]
  if not sums then
    sums = {}
    sums_of[key] = sums
  end
  if not add_to(sums, field, amount) then redis.call('HINCRBY', key, field, amount) end
end

writers[1] = function()
  for key, sums in pairs(sums_of) do
    for field, sum in pairs(sums) do redis.call('HINCRBY', key, field, text_of(sum)) end
  end
  sums_of = {}
end
