-- Deliveries of messages: in line per handler and key. A delivery is named by job, seq, n and handler.
local FIELDS = {
  'key', 'topic', 'data', 'at', 'state', 'tries', 'not_before', 'give_up_at', 'sent_at', 'answer',
  'error', 'position',
}
local COUNTED = {pending = true, dead = true, refused = true}
local handlers
resets[#resets + 1] = function() handlers = nil end

-- Every handler by name: what it wants, for how long it tries, and whose events it follows.
local function load_handlers()
  if not handlers then
    handlers = {}
    for name, row in pairs(U.map('ulak:handlers')) do
      local topic, give_up_us, flow = unpack(cmsgpack.unpack(row), 1, 3)
      handlers[#handlers + 1] = {name = name, topic = topic, give_up_us = give_up_us, flow = flow}
    end
    table.sort(handlers, function(a, b) return a.name < b.name end)
  end
  return handlers
end

local function parts_of(delivery)
  return delivery:match('^(.-):(%-?%d+):(%-?%d+):(.*)$')
end

local function line_of(handler, key) return 'ulak:line:' .. handler .. '\0' .. key end

-- Let the first of a line be taken when it is due; one that gave up and blocks is not.
local function look_after(handler, key)
  local heads = 'ulak:heads:' .. handler
  local first = call('ZRANGE', line_of(handler, key), 0, 0)[1]
  local state, not_before
  if first then
    state, not_before = unpack(call('HMGET', 'ulak:delivery:' .. first, 'state', 'not_before'))
  end
  if state == 'pending' then
    call('ZADD', heads, not_before, key)
  else
    call('ZREM', heads, key)
  end
end

local function count(delivery, handler, at, old, new)
  if old == new then return end
  if COUNTED[old] then call('ZREM', 'ulak:deliveries:' .. old .. ':' .. handler, delivery) end
  if COUNTED[new] then call('ZADD', 'ulak:deliveries:' .. new .. ':' .. handler, at, delivery) end
  if delivery:find('^[^:]*:0:') then
    if new == 'sent' or new == 'discarded' then
      call('ZADD', 'ulak:lone', at, delivery)
    else
      call('ZREM', 'ulak:lone', delivery)
    end
  end
end

local function deliver(message, handler, give_up_us)
  local delivery = message.identity .. ':' .. handler
  local at, position = U.text(message.at), call('INCR', 'ulak:posted')
  local give_up_at = give_up_us and U.text(message.at + give_up_us) or ''
  call('HSET', 'ulak:delivery:' .. delivery,
    'key', message.key, 'topic', message.topic, 'data', message.data, 'at', at,
    'state', 'pending', 'tries', '0', 'not_before', at, 'give_up_at', give_up_at,
    'sent_at', '', 'answer', '', 'error', '', 'position', position)
  call('ZADD', 'ulak:deliveries', position, delivery)
  call('SADD', 'ulak:outbox:' .. message.identity:sub(1, 36), delivery)
  call('SADD', 'ulak:receivers', handler)
  call('ZADD', line_of(handler, message.key), position, delivery)
  count(delivery, handler, at, nil, 'pending')
  look_after(handler, message.key)
  is_due = true
end

-- Write a delivery of a message for every handler that wants it, or for nobody.
function U.post(message)
  local is_wanted = false
  for _, handler in ipairs(load_handlers()) do
    if handler.topic == message.topic or handler.topic == '*' then
      deliver(message, handler.name, handler.give_up_us)
      is_wanted = true
    end
  end
  if not is_wanted then deliver(message, '') end
end

function U.tell_followers(row, event)
  for _, handler in ipairs(load_handlers()) do
    if handler.flow == row[C.flow] then
      local identity = row[C.id] .. ':' .. U.text(event.seq) .. ':-1'
      local message = {
        identity = identity, key = row[C.id], topic = row[C.flow], data = 'null', at = event.at,
      }
      deliver(message, handler.name, handler.give_up_us)
    end
  end
end

function V.post(messages)
  for _, message in ipairs(messages) do U.post(message) end
end

local function read(delivery)
  local fields = call('HMGET', 'ulak:delivery:' .. delivery, unpack(FIELDS))
  return fields[1] and {delivery, fields} or nil
end

local function change(delivery, row, ...)
  call('HSET', 'ulak:delivery:' .. delivery, ...)
  local _, _, _, handler = parts_of(delivery)
  count(delivery, handler, row.at, row.state, call('HGET', 'ulak:delivery:' .. delivery, 'state'))
  look_after(handler, row.key)
end

local function close(delivery, row, ...)
  local _, _, _, handler = parts_of(delivery)
  call('ZREM', line_of(handler, row.key), delivery)
  change(delivery, row, ...)
end

local FOUND = {'state', 'key', 'at', 'tries', 'position', 'not_before'}

local function find(delivery)
  local fields, row = call('HMGET', 'ulak:delivery:' .. delivery, unpack(FOUND)), {}
  if not fields[1] then return nil end
  for n, name in ipairs(FOUND) do row[name] = fields[n] end
  return row
end

local function drop(delivery)
  local row = find(delivery)
  local id, _, _, handler = parts_of(delivery)
  call('DEL', 'ulak:delivery:' .. delivery)
  call('ZREM', 'ulak:deliveries', delivery)
  call('ZREM', 'ulak:lone', delivery)
  call('SREM', 'ulak:outbox:' .. id, delivery)
  if not row then return end
  call('ZREM', line_of(handler, row.key), delivery)
  count(delivery, handler, row.at, row.state, nil)
  look_after(handler, row.key)
end

function U.drop_deliveries(id)
  for _, delivery in ipairs(call('SMEMBERS', 'ulak:outbox:' .. id)) do drop(delivery) end
end

local function is_in_line(delivery, key)
  local _, _, _, handler = parts_of(delivery)
  return call('ZSCORE', line_of(handler, key), delivery)
end

function U.has_open_delivery(id)
  for _, delivery in ipairs(call('SMEMBERS', 'ulak:outbox:' .. id)) do
    if is_in_line(delivery, call('HGET', 'ulak:delivery:' .. delivery, 'key')) then return true end
  end
  return false
end

function V.has_due(handler)
  return #call('ZRANGEBYSCORE', 'ulak:heads:' .. handler, '-inf', now_text, 'LIMIT', 0, 1)
end

local function due_heads(handler, limit)
  local heads = {}
  local keys = call('ZRANGEBYSCORE', 'ulak:heads:' .. handler, '-inf', now_text, 'LIMIT', 0, limit)
  for n, key in ipairs(keys) do heads[n] = call('ZRANGE', line_of(handler, key), 0, 0)[1] end
  return heads
end

local function hold(delivery, row, hold_us)
  change(delivery, row, 'not_before', U.text(now + hold_us))
  return read(delivery)
end

function V.take(handler, limit, hold_us)
  local taken = due_heads(handler, limit)
  for n, delivery in ipairs(taken) do taken[n] = hold(delivery, find(delivery), hold_us) end
  return taken
end

function V.hold(rows, hold_us)
  local held = {}
  for _, one in ipairs(rows) do
    local delivery, not_before = unpack(one, 1, 2)
    local row = find(delivery)
    if row and row.state == 'pending' and row.not_before == not_before then
      held[#held + 1] = hold(delivery, row, hold_us)
    end
  end
  return held
end

-- Look what a follower could take: the heads that come together, and of each its job and all that
-- stands in its line, up to a bound.
function V.look_for_events(handler, limit, most)
  local heads, chosen = due_heads(handler, limit), {}
  for n, delivery in ipairs(heads) do
    local head = read(delivery)
    local has_failed = head[2][11] ~= ''
    if n == 1 or not has_failed then chosen[#chosen + 1] = head end
    if n == 1 and has_failed then break end
  end
  table.sort(chosen, function(a, b) return a[2][1] < b[2][1] end)
  local found, room = {}, most
  for n, head in ipairs(chosen) do
    local key = head[2][1]
    local line = call('ZRANGE', line_of(handler, key), 0, room, 'WITHSCORES')
    local row, events = U.find(key), {}
    for at = 1, #line, 2 do
      local _, seq = parts_of(line[at])
      events[#events + 1] = {line[at + 1], call('LINDEX', U.key('trail', row), seq - 1)}
    end
    found[n] = {head, pack(row), events}
    room = room - #events
    if room < 0 then break end
  end
  return found
end

function V.finish_events(deliveries)
  for _, delivery in ipairs(deliveries) do drop(delivery) end
end

local function settle(one)
  local row = find(one.delivery)
  if not row or row.state == 'sent' then return end
  if one.state == 'sent' then
    close(one.delivery, row, 'state', 'sent', 'sent_at', now_text, 'answer', one.answer)
  elseif row.state == 'pending' then
    local is_open = one.state == 'pending' or one.blocks
    local write = is_open and change or close
    write(one.delivery, row, 'state', one.state, 'tries', U.text(row.tries + one.tries),
      'not_before', one.not_before, 'error', one.error)
  end
end

function V.settle(settled)
  for _, one in ipairs(settled) do settle(one) end
end

function V.redrive(delivery, give_up_at, ...)
  local row = find(delivery)
  if not row or (row.state ~= 'dead' and row.state ~= 'refused') then return 0 end
  local _, _, _, handler = parts_of(delivery)
  call('ZADD', line_of(handler, row.key), row.position, delivery)
  change(delivery, row, 'state', 'pending', 'tries', '0', 'not_before', now_text, 'give_up_at', give_up_at)
  is_due = true
  U.note(...)
  return 1
end

function V.discard(delivery, ...)
  local row = find(delivery)
  if not row or not COUNTED[row.state] then return 0 end
  close(delivery, row, 'state', 'discarded')
  is_due = true
  U.note(...)
  return 1
end

function V.forget_handler(name, actor, act, subject, note)
  if call('HDEL', 'ulak:handlers', name) == 0 then return -1 end
  local discarded = 0
  for state in pairs(COUNTED) do
    for _, delivery in ipairs(call('ZRANGE', 'ulak:deliveries:' .. state .. ':' .. name, 0, -1)) do
      local row = find(delivery)
      if is_in_line(delivery, row.key) then
        close(delivery, row, 'state', 'discarded')
        discarded = discarded + 1
      end
    end
  end
  U.note(actor, act, subject, note, '{"discarded":' .. discarded .. '}')
  return discarded
end

function V.expire(limit, kept_us)
  local before, removed = '(' .. U.text(now - kept_us), 0
  local lone = call('ZRANGEBYSCORE', 'ulak:lone', '-inf', before, 'LIMIT', 0, limit)
  for _, delivery in ipairs(lone) do drop(delivery) end
  local known = {}
  for _, handler in ipairs(load_handlers()) do known[handler.name] = true end
  for _, name in ipairs(call('SMEMBERS', 'ulak:receivers')) do
    for state in pairs(known[name] and {} or COUNTED) do
      local key = 'ulak:deliveries:' .. state .. ':' .. name
      for _, delivery in ipairs(call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, limit)) do
        local row = find(delivery)
        if removed < limit and is_in_line(delivery, row.key) then
          close(delivery, row, 'state', 'discarded', 'data', 'null')
          removed = removed + 1
        end
      end
    end
  end
  return removed + #lone
end

function V.count_deliveries()
  local found = {}
  for _, handler in ipairs(call('SMEMBERS', 'ulak:receivers')) do
    for state in pairs(COUNTED) do
      local key = 'ulak:deliveries:' .. state .. ':' .. handler
      local jobs, oldest = call('ZCARD', key), call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
      if jobs > 0 then found[#found + 1] = {handler, state, jobs, oldest} end
    end
  end
  return found
end

-- Return deliveries above a position.
function V.deliveries(after, limit)
  local found = {}
  local from = '(' .. after
  for n, delivery in ipairs(call('ZRANGEBYSCORE', 'ulak:deliveries', from, '+inf', 'LIMIT', 0, limit)) do
    found[n] = read(delivery)
  end
  return found
end

function V.messages_of(id)
  local found = {}
  for n, delivery in ipairs(call('SMEMBERS', 'ulak:outbox:' .. id)) do found[n] = read(delivery) end
  return found
end
