-- What the calls of a run add to hashes: summed, and written once at its end. scripts.rs puts this before common.lua.
--
-- Sums are exact: a Lua number is so below 2^53, and what would pass that is added at once, as the string that it is.

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
