-- Many calls in one run: what they have in common is read once, and what they add to it is written once, at the end. scripts.rs puts this
-- before each script.

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
