-- Commits: a batch is checked, then each change is written whole or refused.

local function refusal(change, old)
  if change.token then
    if not old or old[C.token] ~= change.token then return {'lost'} end
  elseif not old or old[C.version] ~= change.version or old[C.leased_by] ~= '' then
    return {'stale', old and pack(old) or false}
  end
end

local function is_known(message, id)
  local key = 'ulak:outbox:' .. id
  if call('EXISTS', key) == 0 then return false end
  for _, delivery in ipairs(call('SMEMBERS', key)) do
    if delivery:find(message.identity .. ':', 1, true) == 1 then return true end
  end
  return false
end

-- Say what is wrong with a change that nobody can write.
local function complaint(change, old)
  for _, message in ipairs(change.messages or {}) do
    if is_known(message, old[C.id]) then return 'messages' end
  end
  if old[C.seq] + #change.events ~= tonumber(change.row[C.seq]) then return 'events:' .. old[C.seq] end
end

local function check(changes)
  local found = {}
  for n, change in ipairs(changes) do
    local old = U.stored(change.row)
    local is_known = old and tonumber(old[C.seq]) >= tonumber(change.row[C.seq])
    local is_done = is_known and U.is_in_trail(change.row, change.commit)
    if old and not is_done and not refusal(change, old) then
      local wrong = complaint(change, old)
      if wrong then return nil, {change.row[C.id], wrong} end
    end
    found[n] = {old, is_done}
  end
  return found
end

local function lack(change, old)
  local slot = change.takes_slot
  if slot and (U.free_places(slot) <= 0 or U.paused_key(change.row)) then return {'slot', slot} end
  if change.takes_key then
    local holder = U.holder(U.dedup_key(old))
    if holder and holder ~= change.row[C.id] then return {'key', holder} end
  end
end

local function write_results(change, row)
  if not (change.voids or change.results) then return end
  local key = U.key('results', row)
  if change.voids then
    for _, field in ipairs(call('HKEYS', key)) do
      local stage = field:match('^%d+%z([^%z]*)')
      for _, void in ipairs(change.voids) do
        if void == stage or (void == '*' and stage:sub(1, 1) ~= '/') then call('HDEL', key, field) end
      end
    end
  end
  local results = change.results or {}
  for n = 1, #results, 2 do call('HSET', key, results[n], results[n + 1]) end
end

local function write_slots(change, row)
  if not (change.frees_slot or change.takes_slot) then return end
  local name = U.name(row)
  if change.frees_slot then U.free_slot(change.frees_slot, name) end
  if change.takes_slot then
    U.take_slot(change.takes_slot, name)
    if row[C.slot]:sub(1, 1) == '=' then U.occupy(change.takes_slot, name) end
  end
end

local function write_keys(change, row)
  if not (change.frees_key or change.takes_key) then return end
  local key = U.dedup_key(row)
  if change.frees_key then U.free_key(key, row[C.id]) end
  if change.takes_key and not U.holder(key) then U.take_key(key, row[C.id]) end
end

-- Columns that never change stay, and so do side columns; an operator may change two of the first.
local function merge(change, old)
  local row = change.row
  for n = C.requests, #COLUMNS do
    if change.token or (n ~= C.flow_version and n ~= C.keys) then row[n] = old[n] end
  end
  row[C.requests] = U.settle(old, change.answers)
  return row
end

local function write(change, old)
  local row = merge(change, old)
  U.put(row, old)
  for _, event in ipairs(change.events) do U.append(row, event) end
  write_results(change, row)
  for _, message in ipairs(change.messages or {}) do U.post(message) end
  write_slots(change, row)
  write_keys(change, row)
  for _, job in ipairs(change.spawns or {}) do U.add(job) end
  return row
end

-- Jobs come in the order of their ids: what is answered does not depend on the caller's. Only of a
-- change that is refused, or whose job is asked for something, there is a receipt.
function V.commit(changes)
  local found, wrong = check(changes)
  if not found then return {'refused', wrong} end
  local receipts, pauses = {}, {}
  for n, change in ipairs(changes) do
    local old, is_done = unpack(found[n], 1, 2)
    local receipt = not is_done and (refusal(change, old) or lack(change, old))
    if not receipt then
      local row = old
      if not is_done then
        row = write(change, old)
        for _, pause in ipairs(change.pauses or {}) do pauses[#pauses + 1] = pause end
      end
      receipt = row[C.requests] ~= '0' and U.requests(row)
    end
    if receipt then receipts[#receipts + 1] = {n, receipt} end
  end
  U.pass_on_freed()
  for _, pause in ipairs(pauses) do U.pause_key(unpack(pause, 1, 3)) end
  return {'written', receipts}
end

-- Look whether every change of a large batch can be written, before its first part is.
function V.check(changes)
  local _, wrong = check(changes)
  return wrong or false
end

function V.find_commits(changes)
  local found = {}
  for n, change in ipairs(changes) do
    found[n] = U.is_in_trail(change.row, change.commit) and 1 or 0
  end
  return found
end
