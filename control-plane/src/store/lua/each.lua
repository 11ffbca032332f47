-- Many calls in one run: what they have in common is read once, and what they add to it is written once, at the end.

-- The callback of a function: does `one` for each call of a run, in their order, as if each came alone; what fails one is its answer
-- alone, {'error', why}. The one key is what the project's names begin with; an argument is a call: what `one` takes, in MessagePack.
local function each(one)
  return function(keys, args)
    begin(keys[1])
    local answers = {}
    for i, call in ipairs(args) do
      local done, answer = pcall(one, cmsgpack.unpack(call))
      answers[i] = done and answer or { 'error', type(answer) == 'table' and answer.err or tostring(answer) }
    end
    write()
    return answers
  end
end
