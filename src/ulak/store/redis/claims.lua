-- Claims: lapsed leases are given back, then the most urgent jobs are leased. Also the lease rows of
-- workers.

-- Take a lease away from a worker that vanished.
local function lose(name, worker)
  local old = U.load(name)
  local row = U.copy(old)
  -- The token moves, so that the vanished worker cannot write over its successor's.
  for _, column in ipairs({'token', 'lapses', 'version', 'seq'}) do
    row[C[column]] = U.text(old[C[column]] + 1)
  end
  row[C.leased_by], row[C.lapsed], row[C.not_before] = '', '1', now_text
  U.put(row, old)
  U.append_own(row, 'lapsed', row[C.state], 'ulak', worker, old[C.token])
  local slot = U.wanted_slot(row[C.slot])
  if slot then U.free_slot(slot, name) end
end

local function drop_worker(worker)
  call('ZREM', 'ulak:leases', worker)
  call('HDEL', 'ulak:workers', worker)
end

local function give_back_lapsed()
  local left = MOST_CHANGED
  for _, worker in ipairs(call('ZRANGEBYSCORE', 'ulak:leases', '-inf', now_text)) do
    local key = 'ulak:leased:' .. worker
    if left > 0 then
      local names = call('ZRANGE', key, 0, left - 1)
      for _, name in ipairs(names) do lose(name, worker) end
      left = left - #names
    end
    if call('EXISTS', key) == 0 then drop_worker(worker) end
  end
  return U.pass_on_freed()
end

-- Lines of jobs ------------------------------------------------------------------

local function is_open(lane)
  if not next(U.pauses()) then return true end
  local queue, flow = lane:match('^([^/]*)/[^/]*/([^/]*)')
  for _, field in ipairs({'queue\0' .. queue, 'flow\0' .. flow:match('^(.*)@')}) do
    local pause = U.pauses()[field]
    if pause and not U.is_over(pause) then return false end
  end
  return true
end

-- Where turns are counted: the stages of a flow share them.
local function family_of(lane)
  local before, flow, after = lane:match('^([^/]*/[^/]*/)([^/]*)(.*)$')
  return before .. flow:gsub('#.*', '') .. after
end

-- Return the lines of these lanes that have jobs; a lane that ends in `/*` is one for each tenant.
local function find_lines(lanes)
  U.write_names()
  local lines, named = {}, {}
  local function add(line, family, tenant)
    lines[#lines + 1] = {
      key = 'ulak:lane:' .. line, priority = tonumber(line:sub(-1)), family = family,
      tenant = tenant, passed = 0, found = {}, at = 1,
    }
  end
  for _, lane in ipairs(lanes) do
    if is_open(lane) and lane:sub(-2) == '/*' then
      local from, family = lane:sub(1, -2), family_of(lane)
      for _, line in ipairs(call('ZRANGEBYLEX', 'ulak:lanes', '[' .. from, '(' .. from .. '\255')) do
        add(line, family, line:sub(#from + 1, -3))
      end
    elseif is_open(lane) then
      for priority = 0, 3 do named[#named + 1] = lane .. ':' .. priority end
    end
  end
  for from = 1, #named, 1000 do
    local upto = math.min(from + 999, #named)
    local scores = call('ZMSCORE', 'ulak:lanes', unpack(named, from, upto))
    for n = from, upto do
      if scores[n - from + 1] then add(named[n]) end
    end
  end
  return lines
end

-- Return the next job of a line and its date, which stays in it.
local function first_of(line)
  local found = line.found[line.at]
  if found then return found, tonumber(line.found[line.at + 1]) end
  if line.is_all then return nil end
  -- Whoever was leased or parked has left the set; whoever was passed over is first in it.
  line.found = call(
    'ZRANGEBYSCORE', line.key, '-inf', now_text, 'WITHSCORES', 'LIMIT', line.passed, line.look or 8)
  line.look, line.at = 32, 1
  line.is_all = #line.found == 0
  return line.found[1], tonumber(line.found[2])
end

local function is_before(a, b)
  if not b then return true end
  for n = 1, #a do
    if a[n] ~= b[n] then return a[n] < b[n] end
  end
  return false
end

-- Turns --------------------------------------------------------------------------

local function load_turns(family)
  local turns = {passed = {}, begins = 0}
  for tenant, row in pairs(U.map('ulak:turns:' .. family)) do
    local passed, began = unpack(cmsgpack.unpack(row), 1, 2)
    turns.passed[tenant], turns.begins = passed, math.max(turns.begins, began)
  end
  return turns
end

local function had(turns, tenant) return math.max(turns.begins, turns.passed[tenant] or 0) end

local function take_turn(turns, family, tenant)
  local began = had(turns, tenant)
  local weight = call('HGET', 'ulak:weights', tenant)
  local passed = began + math.floor(TURN / (weight and cmsgpack.unpack(weight)[1] or 1))
  turns.passed[tenant], turns.begins = passed, began
  call('HSET', 'ulak:turns:' .. family, tenant, pack({passed, began}))
  call('SADD', 'ulak:turns', family)
end

-- Return a function that answers who is next: the most urgent, or whose turn it is in its family.
local function in_turn(lines, ageing, all_turns)
  local function key_of(line)
    local name, at = first_of(line)
    if name == line.rated then return line.rating end
    line.rated, line.rating = name, nil
    if name and ageing > 0 then
      line.rating = {at + line.priority * ageing, line.priority, name}
    elseif name then
      line.rating = {line.priority, at, name}
    end
    return line.rating
  end
  local function find_first(rate)
    local best, least
    for _, line in ipairs(lines) do
      local key = rate(line)
      if key and is_before(key, least) then best, least = line, key end
    end
    return best
  end
  return function()
    local is_alone = #lines == 1 and not lines[1].family
    if is_alone then return first_of(lines[1]) and lines[1] end
    local first = find_first(key_of)
    if not first or not first.family then return first end
    local turns = all_turns[first.family] or load_turns(first.family)
    all_turns[first.family] = turns
    return find_first(function(line)
      if line.family ~= first.family or line.priority ~= first.priority then return nil end
      local key = key_of(line)
      return key and {had(turns, line.tenant), line.tenant, key[1], key[2], key[3]}
    end)
  end
end

-- Leases -------------------------------------------------------------------------

-- Tell whether a job can have what its run needs, and take it; else park the job.
local function has_what_it_needs(row, name)
  local key, slot = U.paused_key(row), U.wanted_slot(row[C.slot])
  local lacks
  if key then
    lacks = ON_KEY .. key
  elseif slot and U.free_places(slot) <= 0 then
    lacks = slot
  elseif row[C.rate] ~= '' and not U.can_pay(row) then
    lacks = ON_RATE .. row[C.rate]
  end
  if not lacks then
    if slot then U.take_slot(slot, name) end
    U.pay(row)
    return true
  end
  U.set(row, C.parked_on, lacks)
  if lacks:sub(1, #ON_RATE) == ON_RATE then U.await_payment(row[C.rate]) end
  return false
end

-- Give a job to a worker, entering the busy state of its stage on the way.
local function lease(old, name, request, claimed)
  local row = U.copy(old)
  row[C.leased_by], row[C.leased_at], row[C.stood] = request.worker, now_text, '1'
  row[C.token] = U.text(old[C.token] + 1)
  local entry = row[C.flow] .. '\0' .. row[C.flow_version] .. '\0' .. row[C.state]
  local busy = row[C.role] == 'ready' and request.entries[entry]
  if busy then
    local slot = U.wanted_slot(row[C.slot])
    if slot and request.keeps[entry] then
      row[C.slot] = '=' .. slot
      U.occupy(slot, name)
    end
    row[C.state], row[C.role], row[C.changed_at] = busy, 'busy', now_text
    row[C.version], row[C.seq] = U.text(old[C.version] + 1), U.text(old[C.seq] + 1)
  end
  U.put(row, old)
  if busy then
    U.append_own(row, 'entered', old[C.state], request.worker, request.worker, row[C.token])
  end
  local n = #claimed.rows + 1
  if row[C.has_results] == '1' then
    claimed.results[#claimed.results + 1] = {n, call('HGETALL', U.key('results', row))}
  end
  local payload = plain('HMGET', U.key('payload', row), 'data', 'schema', 'trace')
  row[#row + 1], row[#row + 2] = payload[2], payload[3]
  claimed.rows[n], claimed.data[n], claimed.sizes[n] = row, payload[1], #payload[1]
  claimed.size = claimed.size + #payload[1]
end

-- Take so many jobs from some lanes; what is claimed is added to what was.
local function take(want, request, claimed, turns)
  local places = want.places
  local next_line = in_turn(find_lines(want.lanes), request.ageing, turns)
  while places > 0 and claimed.size < request.bytes and #claimed.rows < MOST_CHANGED do
    local line = next_line()
    if not line then return end
    local name = first_of(line)
    line.at = line.at + 2
    local row = U.load(name)
    local is_suspect = tonumber(row[C.lapses]) >= SUSPECT_LAPSES
    if is_suspect and not request.suspects then
      line.passed = line.passed + 1
    elseif has_what_it_needs(row, name) then
      if line.family then take_turn(turns[line.family], line.family, row[C.tenant]) end
      lease(row, name, request, claimed)
      places = places - 1
      if is_suspect then request.suspects = false end
    end
  end
end

local function earliest(key, best, from)
  local found = call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if found and (not best or tonumber(found) < best) then return tonumber(found) end
  return best
end

-- When a claim could find more.
local function next_at(request)
  local best = earliest('ulak:ready', nil, '(' .. now_text)
  for _, pause in pairs(U.pauses()) do
    local at = pause.until_at
    if at and at > now and (not best or at < best) then best = at end
  end
  for _, want in ipairs(request.wants) do
    for _, line in ipairs(find_lines(want.lanes)) do
      best = earliest(line.key, best, '(' .. now_text)
    end
  end
  return best and U.text(best) or false
end

-- What is asked of the jobs that a worker has leased.
local function requests_of(worker)
  local found, leased = {}, 'ulak:leased:' .. worker
  local few, many = 'ulak:asked', leased
  if call('ZCARD', few) > call('ZCARD', many) then few, many = many, few end
  for _, name in ipairs(call('ZRANGE', few, 0, -1)) do
    if call('ZSCORE', many, name) then
      for _, asked in ipairs(call('HVALS', name:sub(38) .. ':requests:' .. name:sub(1, 36))) do
        found[#found + 1] = asked
      end
    end
  end
  return found
end

function V.claim(request)
  local unparked = give_back_lapsed()
  unparked = unparked + U.end_pauses() + U.unpark_paid()
  local ends = call('ZSCORE', 'ulak:leases', request.worker)
  local claimed, turns, places = {size = 0, rows = {}, sizes = {}, data = {}, results = {}}, {}, 0
  local shares = {}
  if not ends or tonumber(ends) <= now then request.wants = {} end
  for _, want in ipairs(request.wants) do
    local before = #claimed.rows
    places = places + math.max(want.places, 0)
    take(want, request, claimed, turns)
    shares[#shares + 1] = #claimed.rows - before
  end
  local taken = #claimed.rows
  local is_full = claimed.size >= request.bytes or (taken > 0 and taken >= places)
  local paused = {}
  for field, pause in pairs(U.pauses()) do
    if field:sub(1, 4) ~= 'key\0' and not U.is_over(pause) then paused[#paused + 1] = field end
  end
  local following = is_full and now_text or next_at(request)
  local jobs = {
    pack(claimed.rows), pack(claimed.sizes), table.concat(claimed.data), claimed.results,
  }
  return {jobs, shares, requests_of(request.worker), following, unparked, paused}
end

local function keep_worker(worker, started_at, renewed_at, ends_at, lanes, about)
  call('HSET', 'ulak:workers', worker, pack({started_at, renewed_at, ends_at, lanes, about}))
  call('ZADD', 'ulak:leases', U.text(ends_at), worker)
end

function V.register(worker, lease_us, lanes, about)
  keep_worker(worker, now, now, now + lease_us, lanes, about)
end

function V.renew(worker, lease_us)
  local row = call('HGET', 'ulak:workers', worker)
  if not row then return {0} end
  local started_at, _, _, lanes, about = unpack(cmsgpack.unpack(row), 1, 5)
  keep_worker(worker, started_at, now, now + lease_us, lanes, about)
  return {1, requests_of(worker)}
end

function V.unregister(worker)
  local row = call('HGET', 'ulak:workers', worker)
  if not row then return end
  if call('EXISTS', 'ulak:leased:' .. worker) == 0 then return drop_worker(worker) end
  -- The row stays, lapsed, for the next claimer: there is one way of rescue only.
  local started_at, renewed_at, _, lanes, about = unpack(cmsgpack.unpack(row), 1, 5)
  keep_worker(worker, started_at, renewed_at, now, lanes, about)
  is_due = true
end
