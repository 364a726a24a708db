-- What operators do: decided elsewhere, written here if nobody came between. And what jobs stand in
-- a busy state when a limit is turned on over it.
local acts = {note = U.note, open_slots = U.open_slots}

-- A limit has changed: those of its keys that have no limit of their own follow.
function acts.open_all(limit, is_keyed)
  if not is_keyed then U.open_slots(limit, U.places_of(limit)) end
  for _, name in ipairs(call('ZRANGE', 'ulak:slots', 0, -1)) do
    if U.stage_of(name) == limit then U.open_slots(name, U.places_of(name)) end
  end
end

function acts.put_bucket(...)
  U.put_bucket(...)
  is_due = true
end

function acts.let_in()
  U.end_pauses()
  is_due = true
end

function acts.remove(key) call('DEL', key) end

function V.swap(checks, writes, asked)
  for _, check in ipairs(checks) do
    local key, field, stored = unpack(check, 1, 3)
    if call('HGET', key, field) ~= (stored or false) then return 0 end
  end
  for _, write in ipairs(writes) do
    local key, field, value = unpack(write, 1, 3)
    if value then call('HSET', key, field, value) else call('HDEL', key, field) end
  end
  for _, act in ipairs(asked) do acts[act[1]](unpack(act, 2, 12)) end
  return 1
end

local function slot_in(row, limit)
  local mark = limit.marks[row[C.state] .. '/' .. row[C.role]]
  if not mark then return nil end
  if not limit.keyed then return mark .. limit.name end
  local keys = row[C.keys] ~= '' and cjson.decode(row[C.keys])[limit.source]
  return mark .. limit.name .. '/' .. (keys and keys.slot or '')
end

-- Give slots to the jobs that stand in a busy state already; those before it need one from now on.
function V.adopt(limit)
  local names = {}
  for _, state in ipairs({limit.source, limit.busy}) do
    for _, id in ipairs(call('ZRANGE', U.state_key(limit.flow, state), 0, -1)) do
      names[#names + 1] = U.name_of(id, limit.flow)
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local old = U.load(name)
    local slot = slot_in(old, limit)
    if slot and slot ~= old[C.slot] then
      local row, kept = U.copy(old), U.kept_slot(slot)
      row[C.slot] = slot
      if kept then
        for _, other in ipairs(call('ZRANGE', 'ulak:slots', 0, -1)) do
          if other ~= kept then U.free_slot(other, name) end
        end
        U.occupy(kept, name)
        if row[C.parked_on] == kept then row[C.parked_on] = '' end
      end
      U.put(row, old)
    end
  end
end

-- Reading -----------------------------------------------------------------------

function V.load_all(names)
  local rows = {}
  for n, name in ipairs(names) do
    local row = U.load(name)
    rows[n] = row and pack(row) or false
  end
  return rows
end

function V.find(id)
  local row = U.find(id)
  return row and pack(row) or false
end

-- Return jobs by id, upward or downward, above or below one.
function V.page(from, upto, limit, is_down)
  local names
  if is_down then
    names = call('ZREVRANGEBYLEX', 'ulak:jobs', upto, from, 'LIMIT', 0, limit)
  else
    names = call('ZRANGEBYLEX', 'ulak:jobs', from, upto, 'LIMIT', 0, limit)
  end
  return V.load_all(names)
end

-- Return the names of jobs that an index has: those with a dedup key, also when they hold it no
-- longer; those with a role, unless there are too many.
function V.keyed(key)
  local names = {}
  for n, member in ipairs(call('ZRANGEBYLEX', 'ulak:keyed', '[' .. key .. '\0', '(' .. key .. '\1')) do
    names[n] = member:sub(#key + 2)
  end
  return names
end

function V.with_role(role, wanted, most)
  local names, states = {}, {}
  for _, field in ipairs(call('HKEYS', 'ulak:counts')) do
    local flow, _, state, own = field:match('^(.-)%z(.-)%z(.-)%z(.-)$')
    if own == role and (wanted == '' or wanted == flow) then states[U.state_key(flow, state)] = flow end
  end
  for key, flow in pairs(states) do
    if #names + call('ZCARD', key) > most then return false end
    for _, id in ipairs(call('ZRANGE', key, 0, -1)) do names[#names + 1] = U.name_of(id, flow) end
  end
  return names
end

-- Read what belongs to a job.
function V.part(id, kind, command, ...)
  local name = U.find_name(id)
  if not name then return {} end
  return call(command, name:sub(38) .. ':' .. kind .. ':' .. id, ...)
end

function V.slots(limit)
  local found = {}
  for _, name in ipairs(limit and {limit} or call('ZRANGE', 'ulak:slots', 0, -1)) do
    found[#found + 1] = {name, call('HGETALL', 'ulak:slots:' .. name)}
  end
  return found
end

function V.leased(worker)
  return V.load_all(call('ZRANGE', 'ulak:leased:' .. worker, 0, -1))
end

function V.standing(most_ends, since)
  local lanes, leased, ends = {}, {}, {}
  for n, line in ipairs(call('ZRANGE', 'ulak:lanes', 0, -1)) do
    local key = 'ulak:lane:' .. line
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    lanes[n] = {
      line:sub(1, -3), call('ZCOUNT', key, '-inf', now_text), call('ZCOUNT', key, '(' .. now_text, '+inf'),
      first,
    }
  end
  for _, worker in ipairs(call('HKEYS', 'ulak:workers')) do
    for _, name in ipairs(call('ZRANGE', 'ulak:leased:' .. worker, 0, MOST_LEASED)) do
      local key = name:sub(38) .. ':job:' .. name:sub(1, 36)
      leased[#leased + 1] = call('HMGET', key, 'lane', 'leased_at')
    end
  end
  for _, flow in ipairs(call('SMEMBERS', 'ulak:flows')) do
    local ids = call(
      'ZREVRANGEBYSCORE', U.finished_key(flow), '+inf', '(' .. since, 'LIMIT', 0, most_ends)
    for _, id in ipairs(ids) do
      local row = call('HMGET', U.flow(flow) .. ':job:' .. id, 'role', 'changed_at')
      ends[#ends + 1] = {flow, row[1], row[2]}
    end
  end
  return {lanes, leased, call('HGETALL', 'ulak:standing'), call('HGETALL', 'ulak:counts'), ends}
end

function V.look() return 1 end

-- Return how many links of a chain have a hash, the last one, and what comes after it.
function V.unchained(tenant, limit)
  local lines, hashes = 'ulak:proofs:' .. tenant, 'ulak:hashes:' .. tenant
  local number = call('LLEN', hashes)
  return {number, call('LINDEX', hashes, -1) or '', call('LRANGE', lines, number, number + limit - 1)}
end

-- Add hashes to a chain that has so many.
function V.chain(tenant, number, links)
  local hashes = 'ulak:hashes:' .. tenant
  if call('LLEN', hashes) == number then call('RPUSH', hashes, unpack(links)) end
end

local function note_absent(found, kind, name)
  if not call('ZSCORE', 'ulak:jobs', name) then found[#found + 1] = {kind, name:sub(1, 36)} end
end

-- Return what names a job that is not there.
function V.orphans()
  local found = {}
  for _, key in ipairs(call('ZRANGE', 'ulak:keys', 0, -1)) do
    note_absent(found, 'dedup key', call('GET', key) .. ':' .. key:match('^[^:]*'))
  end
  for _, limit in ipairs(call('ZRANGE', 'ulak:slots', 0, -1)) do
    for _, slot in ipairs(call('HVALS', 'ulak:slots:' .. limit)) do
      local name = slot:match('^%d|%d|(.+)$')
      if name then note_absent(found, 'slot', name) end
    end
  end
  for _, name in ipairs(call('ZRANGE', 'ulak:asked', 0, -1)) do note_absent(found, 'requests', name) end
  return found
end

-- The same of messages, a page at a time: where it ends, and what was found.
function V.lost_messages(after, limit)
  local found, page = {}, call(
    'ZRANGEBYSCORE', 'ulak:deliveries', '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for n = 1, #page, 2 do
    local id, seq = page[n]:match('^(.-):(%-?%d+):')
    if seq ~= '0' and not U.find_name(id) then found[#found + 1] = {'messages', id} end
  end
  return {page[#page] or false, found}
end
