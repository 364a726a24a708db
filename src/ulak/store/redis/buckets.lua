-- Buckets of tokens, as `ulak.store.flow_control` counts them: a token has `per_us` parts, and `n`
-- parts come every microsecond. A bucket that has no row is full.

local function load_bucket(name)
  local rate = call('HGET', 'ulak:rates', U.stage_of(name))
  if not rate then return nil end
  local n, per_us, burst = unpack(cmsgpack.unpack(rate), 1, 3)
  local bucket = {name = name, n = n, per_us = per_us, burst = burst, level = burst * per_us, at = now}
  local stored = call('HGET', 'ulak:buckets', name)
  if stored then
    local level, at, ready = unpack(cmsgpack.unpack(stored), 1, 3)
    bucket.ready = ready
    bucket.level, bucket.at = level, at
    if now > at then
      bucket.level, bucket.at = math.min(burst * per_us, level + (now - at) * n), now
    end
  end
  return bucket
end

function U.put_bucket(name, level, at, ready)
  call('HSET', 'ulak:buckets', name, pack({level, at, ready or null}))
  if ready then
    call('ZADD', 'ulak:ready', U.text(ready), name)
  else
    call('ZREM', 'ulak:ready', name)
  end
end

local function save(bucket) U.put_bucket(bucket.name, bucket.level, bucket.at, bucket.ready) end

local function price(bucket, cost) return math.min(cost, bucket.burst) * bucket.per_us end

local function payable_at(bucket, level, parts)
  return bucket.at + math.ceil(math.max(0, parts - level) / bucket.n)
end

local function cost_of(name)
  return tonumber(call('HGET', name:sub(38) .. ':job:' .. name:sub(1, 36), 'cost'))
end

-- Return the most urgent of those who are parked on a bucket, and its score.
local function head(bucket)
  local first = call('ZRANGE', 'ulak:parked:' .. ON_RATE .. bucket.name, 0, 0, 'WITHSCORES')
  return first[1], tonumber(first[2])
end

-- Whether there are tokens for a run, and nobody more urgent is parked here.
function U.can_pay(row)
  local bucket = load_bucket(row[C.rate])
  if not bucket or bucket.level < price(bucket, tonumber(row[C.cost])) then return false end
  local first, score = head(bucket)
  local own = U.urgency(row)
  return not first or own < score or (own == score and U.name(row) < first)
end

function U.pay(row)
  local bucket = row[C.rate] ~= '' and load_bucket(row[C.rate])
  if not bucket then return end
  bucket.level = bucket.level - price(bucket, tonumber(row[C.cost]))
  save(bucket)
end

-- Say when the first of those who are parked can be paid.
function U.await_payment(name)
  local bucket = load_bucket(name)
  if not bucket then return end
  local first = head(bucket)
  bucket.ready = first and payable_at(bucket, bucket.level, price(bucket, cost_of(first)))
  save(bucket)
end

local function let_go(bucket)
  local left, unparked = bucket.level, 0
  bucket.ready = nil
  for _, name in ipairs(call('ZRANGE', 'ulak:parked:' .. ON_RATE .. bucket.name, 0, MOST_UNPARKED)) do
    local parts = price(bucket, cost_of(name))
    if left < parts or unparked >= MOST_UNPARKED then
      bucket.ready = payable_at(bucket, left, parts)
      break
    end
    left, unparked = left - parts, unparked + 1
  end
  save(bucket)
  return U.pass_on(ON_RATE .. bucket.name, unparked)
end

-- Unpark, from every bucket that has filled, as many as it pays for.
function U.unpark_paid()
  local unparked = 0
  for _, name in ipairs(call('ZRANGEBYSCORE', 'ulak:ready', '-inf', now_text)) do
    local bucket = load_bucket(name)
    if bucket then
      unparked = unparked + let_go(bucket)
    else
      call('ZREM', 'ulak:ready', name)
    end
  end
  return unparked
end

-- Nobody waits for it, and nothing was taken from it that has not come back.
function U.is_full(name)
  local bucket = load_bucket(name)
  return bucket and not head(bucket) and bucket.level >= bucket.burst * bucket.per_us
end
