-- The verb that is called, by its name, what it is called with, and the time if a clock was given.
now_text = ARGV[3]
if now_text == '' then
  local time = call('TIME')
  now_text = U.text(time[1] * 1000000 + time[2])
end
now = tonumber(now_text)
local answer = V[ARGV[1]](unpack(cmsgpack.unpack(ARGV[2]), 1, tonumber(ARGV[5])))
U.line_up()
if is_due or has_moved then
  call('PUBLISH', CHANNEL, ARGV[4] .. (is_due and ':due' or ':'))
end
return {now_text, is_due and 1 or 0, has_moved and 1 or 0, answer or false}
