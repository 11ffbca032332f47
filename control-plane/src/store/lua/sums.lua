-- What the calls of a run add to hashes: summed, and written once at its end.
--
-- Sums are exact: a Lua number is so below 2^53, as each amount is, and what would pass that is added at once.

local EXACT = 2 ^ 53

-- False: it would not be exact.
local function add_to(sums, field, amount)
  local sum = (sums[field] or 0) + amount
  if sum >= EXACT or sum <= -EXACT then return false end
  sums[field] = sum
  return true
end

-- As HINCRBY, at the end.
local function hincrby(key, field, amount)
  local sums = run.sums[key] or {}
  run.sums[key] = sums
  if not add_to(sums, field, amount) then redis.call('HINCRBY', key, field, amount) end
end
