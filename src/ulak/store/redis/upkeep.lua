-- Requests and progress, what no worker comes for, and what is left over.

function V.request(id, field, request)
  local old = U.find(id)
  if not old then return 0 end
  local key = U.key('requests', old)
  call('HSETNX', key, field, request)
  U.set(old, C.requests, U.text(call('HLEN', key)))
  return old[C.leased_by] == '' and 0 or 1
end

function V.dismiss(id, answers)
  local old = U.find(id)
  if old then U.set(old, C.requests, U.settle(old, answers)) end
end

function V.report(progress)
  for _, one in ipairs(progress) do
    local name = U.find_name(one[1])
    if name then call('HSET', name:sub(38) .. ':job:' .. one[1], 'progress', one[2]) end
  end
end

local function pack_all(names)
  local rows = {}
  for n, name in ipairs(names) do rows[n] = pack(U.load(name)) end
  return rows
end

-- Return the names of a set by date, above the last one of a page before.
local function page_by_date(key, upto, limit, after_at, after)
  local found, offset = {}, 0
  while #found < limit do
    local names = call('ZRANGEBYSCORE', key, after_at, upto, 'WITHSCORES', 'LIMIT', offset, 100)
    for n = 1, #names, 2 do
      local is_after = tonumber(names[n + 1]) > after_at or names[n]:sub(1, 36) > after
      if is_after and #found < limit then found[#found + 1] = names[n] end
    end
    if #names == 0 then break end
    offset = offset + 100
  end
  return found
end

function V.due(limit, after_at, after)
  return pack_all(page_by_date('ulak:waking', now_text, limit, after_at, after))
end

function V.overdue_leased(limit)
  local found = {}
  for _, name in ipairs(call('ZRANGEBYSCORE', 'ulak:waking:leased', '-inf', now_text)) do
    local is_asked = false
    for _, field in ipairs(call('HKEYS', name:sub(38) .. ':requests:' .. name:sub(1, 36))) do
      is_asked = is_asked or field:sub(1, 7) == 'expire\0'
    end
    if not is_asked then found[#found + 1] = name end
    if #found == limit then break end
  end
  return pack_all(found)
end

function V.asked(limit, after)
  local found, from = {}, after == '' and '-' or '(' .. after .. ':\255'
  while #found < limit do
    local names = call('ZRANGEBYLEX', 'ulak:asked', from, '+', 'LIMIT', 0, 100)
    if #names == 0 then break end
    for _, name in ipairs(names) do
      local row = U.load(name)
      if row[C.leased_by] == '' and #found < limit then
        found[#found + 1] = {pack(row), U.requests(row)}
      end
    end
    from = '(' .. names[#names]
  end
  return found
end

-- Unpark whom no commit has let in; look at a bounded part of what jobs wait for, above a name.
function V.unpark(limit, after)
  local names = call('ZRANGEBYLEX', 'ulak:parked', '(' .. after, '+', 'LIMIT', 0, MOST_LOOKED_AT)
  local unparked = 0
  for _, name in ipairs(names) do
    if name:sub(1, #ON_RATE) == ON_RATE then
      local bucket = name:sub(#ON_RATE + 1)
      if not call('ZSCORE', 'ulak:ready', bucket) then U.await_payment(bucket) end
    else
      local places = limit
      if name:sub(1, #ON_KEY) == ON_KEY then
        if U.pauses()[KEY .. '\0' .. name:sub(#ON_KEY + 1)] then places = 0 end
      elseif name:sub(1, 1) ~= '=' then
        places = U.free_places(name)
      end
      unparked = unparked + U.pass_on(name, math.min(places, limit - unparked))
    end
  end
  local last = #names == MOST_LOOKED_AT and unparked < limit and names[#names] or ''
  return {unparked, unparked < limit and last or after}
end

local function is_idle(limit)
  return U.is_keyed(limit) and U.slots(limit).held == 0
    and call('EXISTS', 'ulak:parked:' .. limit) == 0
end

local function keeps_slot(name, limit)
  local row = U.load(name)
  return row and U.kept_slot(row[C.slot]) == limit
end

local function sweep_slots(limit)
  local idle, left = 0, 0
  for _, name in ipairs(call('ZRANGE', 'ulak:slots', 0, -1)) do
    if is_idle(name) then
      if idle < limit then
        U.drop_slots(name)
        idle = idle + 1
      end
    else
      local slots = U.slots(name)
      for n = 1, slots.size do
        local slot = slots[n]
        if slot.of_state == '1' and slot.name ~= '' and left < limit and not keeps_slot(slot.name, name) then
          U.set_slot(name, n, slot.closed, '0', '')
          left = left + 1
        end
      end
    end
  end
  return idle + left
end

local function sweep_buckets(limit)
  local full, names = 0, call('HKEYS', 'ulak:buckets')
  table.sort(names)
  for _, name in ipairs(names) do
    if full < limit and U.is_full(name) then
      call('HDEL', 'ulak:buckets', name)
      call('ZREM', 'ulak:ready', name)
      full = full + 1
    end
  end
  return full
end

-- Turns of a tenant that have had no more than whoever was last had before it count for nothing.
local function sweep_turns(limit)
  local worthless = 0
  for _, family in ipairs(call('SMEMBERS', 'ulak:turns')) do
    local turns, begins = U.map('ulak:turns:' .. family), 0
    for tenant, row in pairs(turns) do
      turns[tenant] = cmsgpack.unpack(row)
      begins = math.max(begins, turns[tenant][2])
    end
    for tenant, row in pairs(turns) do
      if row[1] <= begins and worthless < limit then
        call('HDEL', 'ulak:turns:' .. family, tenant)
        worthless = worthless + 1
      end
    end
  end
  return worthless
end

function V.sweep(limit)
  local _, pauses = U.end_pauses()
  return sweep_slots(limit) + sweep_buckets(limit) + pauses + sweep_turns(limit)
end

-- Ended jobs --------------------------------------------------------------------

local function ended_before(flow, before, offset)
  local upto = '(' .. U.seconds(U.text(before))
  return call('ZRANGEBYSCORE', U.finished_key(flow), '-inf', upto, 'LIMIT', offset, MOST_CHANGED)
end

-- Return who stands in a state, of a page of those that ended before then; and whether it is the last.
function V.ended(flow, state, before, offset)
  local found, page = {}, ended_before(flow, before, offset)
  for _, id in ipairs(page) do
    if call('ZSCORE', U.state_key(flow, state), id) then found[#found + 1] = U.name_of(id, flow) end
  end
  return {found, #page < MOST_CHANGED and 1 or 0}
end

-- A duplicate is answered with it until its key expires; what it says may not have arrived.
local function is_needed(row)
  local key = U.dedup_key(row)
  if key and call('GET', key) == row[C.id] then
    local until_at = call('ZSCORE', 'ulak:keys', key)
    if until_at and until_at ~= 'inf' and tonumber(until_at) > now then return true end
  end
  return U.has_open_delivery(row[C.id])
end

local function forget(row)
  local id, name = row[C.id], U.name(row)
  U.drop_deliveries(id)
  U.free_key(U.dedup_key(row), id)
  for _, owner in ipairs(call('ZRANGE', U.key('owners', row), 0, -1)) do
    call('ZREM', 'ulak:owned:' .. owner, name)
  end
  for _, ticked in ipairs(call('SMEMBERS', 'ulak:ticked:' .. id)) do
    local schedule, at = ticked:match('^(.*)%z(.-)$')
    call('ZREM', 'ulak:ticks:' .. schedule, at .. ':' .. id)
  end
  call('ZREM', 'ulak:keyed', row[C.dedup_key] .. '\0' .. name)
  U.place(nil, row)
  call('ZREM', 'ulak:jobs', name)
  call('ZREM', 'ulak:unordered', name)
  call('DEL', 'ulak:ticked:' .. id, 'ulak:outbox:' .. id)
  for _, kind in ipairs({'job', 'payload', 'trail', 'results', 'requests', 'owners'}) do
    call('DEL', U.key(kind, row))
  end
end

-- Remove what is not needed of a page of those that ended before then. Answer how many, where the
-- next page begins, and whether this was the last.
function V.prune(before, limit, flow, state, offset, actor, act, subject, note, details)
  local page, pruned = ended_before(flow, before, offset), 0
  for _, id in ipairs(page) do
    local row = pruned < limit and U.load(U.name_of(id, flow))
    if row and (state == '' or row[C.state] == state) and not is_needed(row) then
      forget(row)
      pruned = pruned + 1
    else
      offset = offset + 1
    end
  end
  if pruned > 0 and actor then
    U.note(actor, act, subject, note ~= '' and note, (details:gsub(':%-1,', ':' .. pruned .. ',')))
  end
  return {pruned, offset, #page < MOST_CHANGED and 1 or 0}
end
