-- What every verb stands on: the row of a job, and the sets in which it is found. A row is the list
-- of its columns as text, an absent one empty; `C` has the place of each, `COLUMNS` its name.
-- What a library has not got while it is loaded. `call` looks first whether a set is to be written;
-- `plain` does not, for keys that are none.
local call, plain, pack, null
local U, V = {}, {}
local now, now_text
-- What one call remembers, and how each part of it is forgotten before the next.
local is_due, has_moved, links
local resets = {function() is_due, has_moved, links = false, false, {} end}
-- Members of sorted sets are written together, a command for many: when their set is looked at, or
-- at the end of the call. By set and member: its score, or false when it leaves.
local ranks
resets[#resets + 1] = function() ranks = {} end
local FINAL = {done = true, failed = true, expired = true, cancelled = true}
-- A date up to 2041 and a priority are one whole number that a score can hold.
local PRIORITY = 2 ^ 51

function U.text(number) return string.format('%.0f', number) end

-- To write a number of seconds takes longer than to part its text.
function U.seconds(instant)
  if #instant < 7 then return string.format('%.6f', instant / 1e6) end
  return instant:sub(1, -7) .. '.' .. instant:sub(-6)
end

-- A colon in a part would make one key of two.
function U.part(text) return (text:gsub('[%%:]', {['%'] = '%25', [':'] = '%3A'})) end

-- A job is named by its id and its flow: by the id, names are in order and can be looked up.
local flows = {}

function U.flow(flow)
  flows[flow] = flows[flow] or U.part(flow)
  return flows[flow]
end

local function send(words)
  if #words > 2 then plain(unpack(words)) end
  return {words[1], words[2]}
end

local function write_ranks(key)
  local gone, here = {'ZREM', key}, {'ZADD', key}
  for member, score in pairs(ranks[key]) do
    if score then
      here[#here + 1], here[#here + 2] = score, member
    else
      gone[#gone + 1] = member
    end
    if #gone + #here > MOST_WORDS then gone, here = send(gone), send(here) end
  end
  ranks[key] = nil
  send(gone)
  send(here)
end

function U.call(command, key, ...)
  if ranks[key] then write_ranks(key) end
  return plain(command, key, ...)
end

-- Give a member of a sorted set its score, or none.
function U.rank(key, member, score)
  local own = ranks[key]
  if not own then
    own = {}
    ranks[key] = own
  end
  own[member] = score or false
end

function U.name_of(id, flow) return id .. ':' .. U.flow(flow) end

function U.name(row) return U.name_of(row[C.id], row[C.flow]) end

function U.key(kind, row) return U.flow(row[C.flow]) .. ':' .. kind .. ':' .. row[C.id] end

-- A small hash is a list, in the order in which its fields were first written: that of `COLUMNS`. To
-- look up each of them there would take three times as long.
local function load(key)
  local encoding = plain('OBJECT', 'ENCODING', key)
  if encoding == 'listpack' then return plain('HVALS', key) end
  if not encoding then return nil end
  return plain('HMGET', key, unpack(COLUMNS))
end

function U.load(name) return load(name:sub(38) .. ':job:' .. name:sub(1, 36)) end

-- Return how a job is stored that comes with a row.
function U.stored(row) return load(U.key('job', row)) end

function U.find_name(id)
  return call('ZRANGEBYLEX', 'ulak:jobs', '[' .. id, '[' .. id .. ':\255', 'LIMIT', 0, 1)[1]
end

function U.find(id)
  local name = U.find_name(id)
  return name and U.load(name)
end

function U.copy(row) return {unpack(row, 1, #COLUMNS)} end

function U.urgency(row)
  return row[C.priority] * PRIORITY + math.min(tonumber(row[C.not_before]), PRIORITY - 1)
end

-- Where a job stands: a set and its score; and the set of sets that are not empty, with its name.
local function find_place(row)
  if row[C.leased_by] ~= '' then
    return 'ulak:leased:' .. row[C.leased_by], '0'
  elseif row[C.parked_on] ~= '' then
    return 'ulak:parked:' .. row[C.parked_on], U.text(U.urgency(row)), 'ulak:parked', row[C.parked_on]
  elseif row[C.lane] ~= '' then
    local line = row[C.lane] .. ':' .. row[C.priority]
    return 'ulak:lane:' .. line, row[C.not_before], 'ulak:lanes', line
  end
end

-- Sums, and which sets are empty, are written once for a call, not for each job.
local sums, touched
resets[#resets + 1] = function() sums, touched = {}, {} end

local function add_up(key, field, by)
  local own = sums[key] or {}
  sums[key] = own
  own[field] = (own[field] or 0) + by
end

local function write_sums()
  for key, fields in pairs(sums) do
    for field, by in pairs(fields) do
      if by ~= 0 and call('HINCRBY', key, field, by) == 0 then call('HDEL', key, field) end
    end
  end
  sums = {}
end

-- Name the sets of jobs that are not empty, no others.
function U.write_names()
  for key, at in pairs(touched) do
    if call('EXISTS', key) == 1 then
      call('ZADD', at[1], 0, at[2])
    else
      call('ZREM', at[1], at[2])
    end
  end
  touched = {}
end

local function touch(key, names, own)
  if names and not touched[key] then touched[key] = {names, own} end
end

local function move(row, old, name)
  local was, from, old_names, old_own
  if old then was, from, old_names, old_own = find_place(old) end
  local is, to, names, own
  if row then is, to, names, own = find_place(row) end
  if names == 'ulak:lanes' then is_due = true end
  if was ~= is or from ~= to then
    if was and was ~= is then
      U.rank(was, name)
      touch(was, old_names, old_own)
    end
    if is then
      U.rank(is, name, to)
      touch(is, names, own)
    end
  end
  local waited = old_names and old[C.lane] .. '\0' .. old[C.tenant]
  local waits = names and row[C.lane] .. '\0' .. row[C.tenant]
  if waited ~= waits then
    if waited then add_up('ulak:waiting', waited, -1) end
    if waits then add_up('ulak:waiting', waits, 1) end
  end
  local parked = old_names == 'ulak:parked' and old[C.lane]
  local parks = names == 'ulak:parked' and row[C.lane]
  if parked ~= parks then
    if parked then add_up('ulak:standing', parked, -1) end
    if parks then add_up('ulak:standing', parks, 1) end
  end
end

local function counted(row)
  return row[C.flow] .. '\0' .. row[C.flow_version] .. '\0' .. row[C.state] .. '\0' .. row[C.role]
end

local state_keys = {}

function U.state_key(flow, state)
  local own = state_keys[flow] or {}
  state_keys[flow] = own
  if not own[state] then
    -- A state of this name would be taken for the set of those that have ended.
    own[state] = U.flow(flow) .. ':jobs:' .. (state == 'finished' and '%finished' or state)
  end
  return own[state]
end

local function count(row, old)
  local has_moved = not (row and old) or row[C.state] ~= old[C.state]
  if not has_moved and row[C.role] == old[C.role] and row[C.flow_version] == old[C.flow_version] then
    return
  end
  if old then add_up('ulak:counts', counted(old), -1) end
  if row then add_up('ulak:counts', counted(row), 1) end
  if not has_moved then return end
  if old then U.rank(U.state_key(old[C.flow], old[C.state]), old[C.id]) end
  if row then
    U.rank(U.state_key(row[C.flow], row[C.state]), row[C.id], U.seconds(row[C.created_at]))
  end
end

-- Keep a job in a set by a date while it has one.
local function date(key, at, old_key, old_at, member)
  if key == old_key and at == old_at then return end
  if old_key and key ~= old_key then U.rank(old_key, member) end
  if key then U.rank(key, member, at) end
end

local function waking(row)
  if row and row[C.wake_at] ~= '' then
    return row[C.leased_by] == '' and 'ulak:waking' or 'ulak:waking:leased', row[C.wake_at]
  end
end

function U.finished_key(flow) return U.flow(flow) .. ':jobs:finished' end

local function finished(row)
  if row and FINAL[row[C.role]] then
    return U.finished_key(row[C.flow]), U.seconds(row[C.changed_at])
  end
end

local function asked(row)
  if row and row[C.requests] ~= '0' then return 'ulak:asked', '0' end
end

function U.place(row, old)
  local name = U.name(row or old)
  move(row, old, name)
  count(row, old)
  local key, at = waking(row)
  local old_key, old_at = waking(old)
  date(key, at, old_key, old_at, name)
  key, at = finished(row)
  old_key, old_at = finished(old)
  date(key, at, old_key, old_at, (row or old)[C.id])
  key, at = asked(row)
  old_key, old_at = asked(old)
  date(key, at, old_key, old_at, name)
  has_moved = true
end

-- A list that grows with each job anew would take longer than to write it.
local changed = {}

-- The only way in which a row changes.
function U.put(row, old)
  local words = 0
  for n = 1, #COLUMNS do
    if not old or row[n] ~= old[n] then
      changed[words + 1], changed[words + 2] = COLUMNS[n], row[n]
      words = words + 2
    end
  end
  if words > 0 then plain('HSET', U.key('job', row), unpack(changed, 1, words)) end
  U.place(row, old)
end

-- Change one column of a job.
function U.set(old, column, value)
  local row = U.copy(old)
  row[column] = value
  U.put(row, old)
end

function U.note(actor, act, subject, note, details)
  call('RPUSH', 'ulak:audit', pack({now, actor, act, subject, note or null, details}))
end

-- Trails ------------------------------------------------------------------------

-- A line begins with the identity of its commit: so a commit that is repeated is known.
function U.is_in_trail(row, commit)
  local seq = tonumber(row[C.seq])
  if seq == 0 then return false end
  local line = call('LINDEX', U.key('trail', row), seq - 1)
  return line and line:sub(1, #commit) == commit
end

function U.append(row, event)
  plain('RPUSH', U.key('trail', row), event.line)
  if event.proof then
    links[#links + 1] = {row[C.tenant], row[C.id], event.seq, event.proof}
  end
  U.tell_followers(row, event)
end

-- Write the line of a lease that was taken into a busy state, or lost.
function U.append_own(row, kind, origin, actor, worker, token)
  local seq = tonumber(row[C.seq])
  local started = row[C.leased_at] ~= '' and tonumber(row[C.leased_at]) or null
  local line = '\0' .. pack({
    seq, kind, origin, row[C.state], actor, null, null, null, tonumber(row[C.round]),
    row[C.attempt] + 1, worker, tonumber(token), started, now, 0,
  })
  local event = {seq = seq, at = now, line = line}
  if call('HGET', U.key('job', row), 'proven') then
    event.proof = table.concat({
      (row[C.id]:gsub('-', '')), U.text(seq), kind, origin, row[C.state], actor, '', '', '', now_text,
    }, '\31')
  end
  U.append(row, event)
end

-- Line up what was proved, by tenant, job and number.
function U.line_up()
  table.sort(links, function(a, b)
    for n = 1, 3 do
      if a[n] ~= b[n] then return a[n] < b[n] end
    end
    return false
  end)
  for _, link in ipairs(links) do
    call('RPUSH', 'ulak:proofs:' .. link[1], pack({unpack(link, 2, 4)}))
    call('SADD', 'ulak:proofs', link[1])
  end
end

function U.finish()
  U.line_up()
  U.write_names()
  write_sums()
  for key in pairs(ranks) do write_ranks(key) end
end

-- Requests ----------------------------------------------------------------------

function U.requests(row)
  if row[C.requests] == '0' then return {} end
  return call('HVALS', U.key('requests', row))
end

-- Drop what is answered; return how many are left, as the column has it.
function U.settle(row, answers)
  if not answers then return row[C.requests] end
  for _, answer in ipairs(answers) do call('HDEL', U.key('requests', row), answer) end
  return U.text(call('HLEN', U.key('requests', row)))
end
