-- Slots: at most so many jobs of a limit, or of one of its keys. What a call has read of a limit it
-- remembers. A slot is stored under its number as `closed|of_state|name of its job`.
local opened, freed, pauses
resets[#resets + 1] = function() opened, freed, pauses = {}, {}, nil end
local KEY, ON_KEY, ON_RATE = 'key', '/key/', '/rate/'

function U.stage_of(name) return name:match('^[^/]*/[^/]*') end

function U.is_keyed(name) return name:find('^[^/]*/[^/]*/') ~= nil end

-- How many jobs a limit lets in, if it is one that was declared.
function U.places_of(limit)
  local row = call('HGET', 'ulak:limits', limit) or call('HGET', 'ulak:limits', U.stage_of(limit))
  return row and cmsgpack.unpack(row)[1] or 0
end

function U.slots(limit)
  local found = opened[limit]
  if found then return found end
  found = {size = 0, open = 0, held = 0}
  local flat = call('HGETALL', 'ulak:slots:' .. limit)
  for n = 1, #flat, 2 do
    local closed, of_state, name = flat[n + 1]:match("^(%d)|(%d)|(.*)$")
    local number = tonumber(flat[n])
    found[number] = {closed = closed == '1', of_state = of_state, name = name}
    found.size = math.max(found.size, number)
    if closed == '0' then found.open = found.open + 1 end
    if name ~= '' then found.held = found.held + 1 end
  end
  opened[limit] = found
  return found
end

function U.set_slot(limit, n, closed, of_state, name)
  local slots = U.slots(limit)
  local old = slots[n]
  if slots.size == 0 then call('ZADD', 'ulak:slots', 0, limit) end
  if old and not old.closed then slots.open = slots.open - 1 end
  if old and old.name ~= '' then slots.held = slots.held - 1 end
  if not closed then slots.open = slots.open + 1 end
  if name ~= '' then slots.held = slots.held + 1 end
  slots.size = math.max(slots.size, n)
  slots[n] = {closed = closed, of_state = of_state, name = name}
  call('HSET', 'ulak:slots:' .. limit, n, (closed and '1|' or '0|') .. of_state .. '|' .. name)
end

function U.drop_slots(limit)
  call('DEL', 'ulak:slots:' .. limit)
  call('ZREM', 'ulak:slots', limit)
  opened[limit] = nil
end

-- Have exactly so many open; those above close.
function U.open_slots(limit, places)
  local slots = U.slots(limit)
  for n = 1, math.max(places, slots.size) do
    local slot = slots[n] or {of_state = '0', name = ''}
    if slot.closed ~= (n > places) then U.set_slot(limit, n, n > places, slot.of_state, slot.name) end
  end
end

function U.free_places(limit)
  local slots = U.slots(limit)
  -- The slots of a key are opened when the first job takes one.
  if slots.size == 0 and U.is_keyed(limit) then return U.places_of(limit) end
  return slots.open - slots.held
end

function U.take_slot(limit, name)
  if U.free_places(limit) <= 0 then return false end
  local slots = U.slots(limit)
  if slots.size == 0 then U.open_slots(limit, U.places_of(limit)) end
  for n = 1, slots.size do
    if slots[n].name == '' and not slots[n].closed then
      U.set_slot(limit, n, false, '0', name)
      return true
    end
  end
end

local function find_slot(limit, name)
  local slots = U.slots(limit)
  for n = 1, slots.size do
    if slots[n] and slots[n].name == name then return n, slots[n] end
  end
end

function U.free_slot(limit, name)
  local n, slot = find_slot(limit, name)
  if not n then return end
  U.set_slot(limit, n, slot.closed, '0', '')
  freed[limit] = (freed[limit] or 0) + 1
end

-- Make the slot of a job that of its state; if it has none, a free or a closed one.
function U.occupy(limit, name)
  local slots = U.slots(limit)
  if slots.size == 0 then U.open_slots(limit, U.places_of(limit)) end
  local n, slot = find_slot(limit, name)
  for other = 1, n and 0 or slots.size do
    if slots[other].name == '' and not slots[other].closed then
      n, slot = other, slots[other]
      break
    end
  end
  if not n then n, slot = slots.size + 1, {closed = true} end
  U.set_slot(limit, n, slot.closed, '1', name)
end

-- Unpark the most urgent of those who wait for something; answer how many.
function U.pass_on(on, places)
  if places <= 0 then return 0 end
  local names = call('ZRANGE', 'ulak:parked:' .. on, 0, places - 1)
  for _, name in ipairs(names) do U.set(U.load(name), C.parked_on, '') end
  return #names
end

-- Let others into what was freed, after everything: nobody into a place that was taken meanwhile.
function U.pass_on_freed()
  local limits, unparked = {}, 0
  for limit in pairs(freed) do limits[#limits + 1] = limit end
  table.sort(limits)
  for _, limit in ipairs(limits) do
    unparked = unparked + U.pass_on(limit, math.min(freed[limit], U.free_places(limit)))
  end
  freed = {}
  return unparked
end

-- The slot that a claim must take for a job, and the one that a job keeps without a lease.
function U.wanted_slot(slot)
  if slot == '' or slot:find('^[=~-]') then return nil end
  return slot
end

function U.kept_slot(slot)
  if slot:find('^[=-]') then return slot:sub(2) end
end

-- Pauses ------------------------------------------------------------------------

-- Every pause by `kind\0name`: until when (nil for ever), by whom, why, since when.
function U.pauses()
  if not pauses then
    pauses = {}
    for field, row in pairs(U.map('ulak:pauses')) do
      local until_at, actor, note, at = unpack(cmsgpack.unpack(row), 1, 4)
      pauses[field] = {until_at = until_at, actor = actor, note = note, at = at}
    end
  end
  return pauses
end

function U.put_pause(field, pause)
  U.pauses()[field] = pause
  local row = pack({pause.until_at or null, pause.actor, pause.note or null, pause.at})
  call('HSET', 'ulak:pauses', field, row)
end

function U.is_over(pause) return pause.until_at and pause.until_at <= now end

-- End the pauses that are over, once all who wait for a key are unparked; answer how many were
-- unparked, and how many ended.
function U.end_pauses()
  local unparked, ended = 0, 0
  for field, pause in pairs(U.pauses()) do
    if U.is_over(pause) then
      local on = field:match('^key%z(.*)$')
      local left = on and call('ZCARD', 'ulak:parked:' .. ON_KEY .. on) or 0
      if left > 0 then
        local let = U.pass_on(ON_KEY .. on, MOST_UNPARKED)
        unparked, left = unparked + let, left - let
      end
      if left == 0 then
        call('HDEL', 'ulak:pauses', field)
        pauses[field], ended = nil, ended + 1
      end
    end
  end
  return unparked, ended
end

-- Return the key that stops a job from being run, if one is paused.
function U.paused_key(row)
  if not next(U.pauses()) then return nil end
  for _, name in ipairs({row[C.slot], row[C.rate]}) do
    local key = name:sub(1, 1) ~= '-' and name:match('^[^/]*/[^/]*/(.*)$')
    local pause = key and U.pauses()[KEY .. '\0' .. key]
    if pause and not U.is_over(pause) then return key end
  end
end

-- Pause a key for a run that met an answer such as 429; a longer pause stays.
function U.pause_key(key, until_at, actor)
  local field = KEY .. '\0' .. key
  local before = U.pauses()[field]
  if before and U.is_over(before) then before = nil end
  if until_at <= now or before and (not before.until_at or before.until_at >= until_at) then return end
  if before then
    before.until_at = until_at
    return U.put_pause(field, before)
  end
  U.put_pause(field, {until_at = until_at, actor = actor, at = now})
  local details = '{"until_at":' .. U.text(until_at) .. ',"before":null}'
  U.note(actor, 'pause', 'key/' .. key, nil, details)
end
