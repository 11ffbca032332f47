-- The calendar: proleptic Gregorian, UTC; Howard Hinnant's days_from_civil and its inverse.

local DAY_MS = 86400000

local function days_of(year, month, day)
  if month <= 2 then year = year - 1 end
  local era = floor(year / 400)
  local of_era = year - era * 400
  local of_year = floor((153 * (month > 2 and month - 3 or month + 9) + 2) / 5) + day - 1
  return era * 146097 + of_era * 365 + floor(of_era / 4) - floor(of_era / 100) + of_year - 719468
end

local function date_of(days)
  days = days + 719468
  local era = floor(days / 146097)
  local of_era = days - era * 146097
  local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
  local shifted = floor((5 * of_year + 2) / 153)
  local month = shifted < 10 and shifted + 3 or shifted - 9
  return year + era * 400 + (month <= 2 and 1 or 0), month, of_year - floor((153 * shifted + 2) / 5) + 1
end

local function month_after(year, month)
  if month == 12 then return year + 1, 1 end
  return year, month + 1
end

-- The day on which the period of this month begins: the reset day, or the month's last day if it has fewer.
local function first_day(year, month, reset_day)
  local start = days_of(year, month, 1)
  local next_year, next_month = month_after(year, month)
  local length = days_of(next_year, next_month, 1) - start
  return start + min(reset_day, length) - 1
end

-- The period of an instant, named by the month it began in: 202611.
local function period_of(ms, reset_day)
  local today = floor(ms / DAY_MS)
  local year, month = date_of(today)
  if today < first_day(year, month, reset_day) then
    if month == 1 then year, month = year - 1, 12 else month = month - 1 end
  end
  return year * 100 + month
end

-- The instant at which the period after this one begins.
local function period_end(period, reset_day)
  local year, month = month_after(floor(period / 100), period % 100)
  return first_day(year, month, reset_day) * DAY_MS
end

-- A day as a number: 20261130.
local function date_number(days)
  local year, month, day = date_of(days)
  return year * 10000 + month * 100 + day
end
