-- The one function: a verb by its name, what it is called with and how many they are, the time if a
-- clock was given, where to ring and by whom.
redis.register_function(FUNCTION, function(_, args)
  local verb, packed, count, given, channel, me = unpack(args)
  call, plain, pack, null = U.call, redis.call, cmsgpack.pack, cjson.null
  for _, reset in ipairs(resets) do reset() end
  now_text = given
  if now_text == '' then
    local time = plain('TIME')
    now_text = U.text(time[1] * 1000000 + time[2])
  end
  now = tonumber(now_text)
  local answer = V[verb](unpack(cmsgpack.unpack(packed), 1, tonumber(count)))
  U.finish()
  if is_due or has_moved then
    call('PUBLISH', channel, me .. (is_due and ':due' or ':'))
  end
  return {now_text, is_due and 1 or 0, has_moved and 1 or 0, answer or false}
end)
