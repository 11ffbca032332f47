-- What a run is: all calls of one project that came for a function at the same time. scripts.rs puts this first, after NAMES.
--
-- The library's own variables outlive a run, so what belongs to one is in `run` alone. While a library is loaded nothing is there but the
-- language: functions of Lua's own and `redis.call` are for what runs later.

-- A text of Redis becomes a number by `+ 0`: `tonumber` reads it twice.

local run

local function begin(prefix)
  run = {
    -- What every name of the project begins with; all of them are in its hash slot.
    prefix = prefix,
    -- The project's state; `now` once it is up to date, `is_swept` once its due holds are charged.
    project = nil,
    -- By key: windows that were read, windows whose past buckets changed, fields that are added to at the end.
    windows = {}, rings = {}, sums = {},
    -- By day: the name of its counts; by day, key, model and sender: what is added to them.
    days = {}, tallies = {},
    -- Reservations that are held from now on (when they are due, id), and those that are no more.
    held = {}, ended = {},
    -- By id: whose ceilings count; by the providers: their credentials.
    keys = {}, senders = {}, credentials = {},
  }
end

local function name(kind, id)
  return run.prefix .. NAMES[kind] .. (id or '')
end

local function floor(number)
  return number - number % 1
end

local function max(a, b)
  return a > b and a or b
end

local function min(a, b)
  return a < b and a or b
end
