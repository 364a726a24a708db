-- New jobs, their keys and owners; dates of schedules.

function U.dedup_key(row)
  if row[C.dedup_key] == '' then return nil end
  return U.key_name(row[C.tenant], row[C.flow], row[C.dedup_key])
end

function U.key_name(tenant, flow, key)
  local owner = tenant == '' and '' or U.part(tenant) .. ':'
  return U.flow(flow) .. ':key:' .. owner .. U.part(key)
end

-- Return the id of the job that holds a key now.
function U.holder(key)
  local id = key and call('GET', key)
  if not id then return nil end
  local until_at = call('ZSCORE', 'ulak:keys', key)
  if until_at and until_at ~= 'inf' and tonumber(until_at) <= now then return nil end
  return id
end

function U.take_key(key, id, until_at)
  call('SET', key, id)
  call('ZADD', 'ulak:keys', until_at or '+inf', key)
end

function U.free_key(key, id)
  if key and call('GET', key) == id then
    call('DEL', key)
    call('ZREM', 'ulak:keys', key)
  end
end

function U.own(row, owner, since)
  local name, key = U.name(row), U.key('owners', row)
  local known = call('ZSCORE', key, owner)
  if known and tonumber(known) <= since then return end
  call('ZADD', key, U.text(since), owner)
  call('ZADD', 'ulak:owned:' .. owner, U.text(since), name)
end

local known
resets[#resets + 1] = function() known = {} end

local function write(job)
  local row = job.row
  U.put(row)
  U.rank('ulak:jobs', U.name(row), '0')
  -- An id that is no UUIDv7 does not tell when its job was submitted.
  if row[C.id]:sub(15, 15) ~= '7' then U.rank('ulak:unordered', U.name(row), row[C.created_at]) end
  if not known[row[C.flow]] then
    known[row[C.flow]] = true
    call('SADD', 'ulak:flows', row[C.flow])
  end
  call('HSET', U.key('payload', row), 'data', job.data, 'schema', job.schema, 'trace', job.trace)
  local key = U.dedup_key(row)
  if key then
    U.take_key(key, row[C.id], job.key_until)
    U.rank('ulak:keyed', row[C.dedup_key] .. '\0' .. U.name(row), '0')
  end
  if job.event.proof then call('HSET', U.key('job', row), 'proven', '1') end
  U.append(row, job.event)
end

-- Store a job or find the one that is answered in its place: what became of it, and which.
function U.add(job, stop)
  local row, became, answer = job.row, 'created', nil
  answer = U.stored(row)
  local holder = not answer and U.holder(U.dedup_key(row))
  if answer then
    became = 'known'
  elseif holder then
    became, answer = 'held', U.load(U.name_of(holder, row[C.flow]))
  elseif stop then
    return {'stopped', unpack(stop)}
  else
    write(job)
  end
  if job.owner then U.own(answer or row, job.owner, now) end
  return {became, answer and pack(answer) or false}
end

local function stop_for(job, stops)
  if job.is_admitted then return nil end
  local row = job.row
  for _, tenant in ipairs({row[C.tenant], '*'}) do
    local field = row[C.flow] .. '\0' .. tenant
    if stops[field] then return {field, stops[field]} end
  end
end

function U.map(key)
  local flat, found = call('HGETALL', key), {}
  for n = 1, #flat, 2 do found[flat[n]] = flat[n + 1] end
  return found
end

function V.add(jobs)
  local answers, stops = {}, U.map('ulak:stops')
  for n, job in ipairs(jobs) do answers[n] = U.add(job, stop_for(job, stops)) end
  return answers
end

function V.find_key(tenant, flow, key)
  return U.holder(U.key_name(tenant, flow, key))
end

function V.add_owner(id, owner, since)
  local row = U.find(id)
  if row then U.own(row, owner, since or now) end
end

-- A date is `due_at:id of its job`.
local function tick(one)
  local stored = call('HGET', 'ulak:schedules', one.name)
  if stored ~= one.row or one.due_at > now then return 0 end
  local key = 'ulak:ticks:' .. one.name
  for _, job in ipairs(one.jobs) do
    local at = job.row[C.scheduled_for]
    if #call('ZRANGEBYSCORE', key, at, at, 'LIMIT', 0, 1) == 0 then
      local answer = U.add(job)[2]
      local id = answer and cmsgpack.unpack(answer)[C.id] or job.row[C.id]
      call('ZADD', key, at, at .. ':' .. id)
      call('SADD', 'ulak:ticked:' .. id, one.name .. '\0' .. at)
    end
  end
  call('HSET', 'ulak:schedules', one.name, one.following)
  return 1
end

function V.tick(ticks)
  local written = {}
  for n, one in ipairs(ticks) do written[n] = tick(one) end
  return written
end
