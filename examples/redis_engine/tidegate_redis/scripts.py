"""A queue in Redis: what is changed together is one script, which Redis runs in one piece.

    tidegate:queues             name → policy, as JSON
    tidegate:last               the id that was given last
    tidegate:ready:QUEUE        ids by place: what waits
    tidegate:later:QUEUE        ids by when they are due
    tidegate:expiry:QUEUE       ids by when they are of no use any more
    tidegate:flagged:QUEUE      ids that may have been delivered before
    tidegate:held:QUEUE         id → who holds it
    tidegate:body:QUEUE         id → the message
    tidegate:place:QUEUE        id → its place in line
    tidegate:count:QUEUE        id → deliveries
    tidegate:deaths:QUEUE       id → why it is a dead letter

A place is (10 − priority) · 2⁴⁴ + id, so what comes back stands where it stood. Times are
microseconds of Redis' own clock. Numbers are written by string.format: Lua's own way keeps 14
digits.
"""

from __future__ import annotations

NO_QUEUE = "NOQUEUE"
NEWS = "tidegate:news"

_BEGIN = """
local queue = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function text(number) return string.format('%.0f', number) end
local function key(part, of) return 'tidegate:' .. part .. ':' .. (of or queue) end
local policy = redis.call('HGET', 'tidegate:queues', queue)
if not policy then return redis.error_reply('NOQUEUE ' .. queue) end
policy = cjson.decode(policy)
local most = policy.deliveries_max or 10

local function forget(id)
  for _, part in ipairs({'body', 'place', 'count', 'deaths', 'held'}) do
    redis.call('HDEL', key(part), id)
  end
  for _, part in ipairs({'ready', 'later', 'expiry'}) do redis.call('ZREM', key(part), id) end
  redis.call('SREM', key('flagged'), id)
end

local function to_line(id)
  redis.call('ZADD', key('ready'), redis.call('HGET', key('place'), id), id)
end

local function bury(id, reason, said)
  local target = policy.dead_letter or (queue .. '.dead')
  if target ~= '' then
    redis.call('HSETNX', 'tidegate:queues', target, '{"deliveries_max":0,"dead_letter":""}')
    local deaths = cjson.decode(redis.call('HGET', key('deaths'), id) or '[]')
    local deliveries = tonumber(redis.call('HGET', key('count'), id) or 0)
    if not said or said == '' then said = cjson.null end
    table.insert(deaths, {queue, reason, said, deliveries, now / 1000000, tonumber(id)})
    local number = redis.call('INCR', 'tidegate:last')
    local letter, place = text(number), text(5 * 2 ^ 44 + number)
    redis.call('HSET', key('body', target), letter, redis.call('HGET', key('body'), id))
    redis.call('HSET', key('place', target), letter, place)
    redis.call('HSET', key('deaths', target), letter, cjson.encode(deaths))
    redis.call('ZADD', key('ready', target), place, letter)
    redis.call('PUBLISH', 'tidegate:news', target)
  end
  forget(id)
end

local function again(id, wait, said)
  redis.call('HDEL', key('held'), id)
  redis.call('SADD', key('flagged'), id)
  if most > 0 and tonumber(redis.call('HGET', key('count'), id)) >= most then
    bury(id, 'deliveries', said)
  elseif wait > 0 then
    redis.call('ZADD', key('later'), text(now + wait), id)
  else
    to_line(id)
  end
end
"""

# body, priority, from when on, until when (0: always), whether it may be there already
PUT = (
    _BEGIN
    + """
local number = redis.call('INCR', 'tidegate:last')
local id = text(number)
redis.call('HSET', key('body'), id, ARGV[1])
redis.call('HSET', key('place'), id, text((10 - ARGV[2]) * 2 ^ 44 + number))
local due, ends = tonumber(ARGV[3]), tonumber(ARGV[4])
-- What is negative is so long from now.
if due < 0 then due = now - due end
if ends < 0 then ends = now - ends end
if ends == 0 and policy.ttl_s then ends = now + policy.ttl_s * 1000000 end
if ends > 0 then redis.call('ZADD', key('expiry'), text(ends), id) end
if ARGV[5] == '1' then redis.call('SADD', key('flagged'), id) end
if due > now then redis.call('ZADD', key('later'), text(due), id) else to_line(id) end
redis.call('PUBLISH', 'tidegate:news', queue)
return number
"""
)

# holder, how many, whether they are done by that
TAKE = (
    _BEGIN
    + """
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('later'), '-inf', text(now))) do
  redis.call('ZREM', key('later'), id)
  to_line(id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('expiry'), '-inf', text(now))) do
  if redis.call('HEXISTS', key('held'), id) == 0 then
    if policy.keep_expired then bury(id, 'expired') else forget(id) end
  end
end
local taken = {}
for _ = 1, tonumber(ARGV[2]) do
  local id = redis.call('ZPOPMIN', key('ready'))[1]
  if not id then break end
  local count = redis.call('HINCRBY', key('count'), id, 1)
  table.insert(taken, {
    id, redis.call('HGET', key('body'), id), count,
    redis.call('SISMEMBER', key('flagged'), id), redis.call('HGET', key('deaths'), id) or '[]'
  })
  if ARGV[3] == '1' then forget(id) else redis.call('HSET', key('held'), id, ARGV[1]) end
end
return taken
"""
)

_HELD = """
local id, holder = ARGV[1], ARGV[2]
if redis.call('HGET', key('held'), id) ~= holder then return 0 end
"""

# id, holder
ACK = _BEGIN + _HELD + "forget(id) return 1"

# id, holder, delay (negative: as the policy backs off), what was wrong
NACK = (
    _BEGIN
    + _HELD
    + """
local wait = tonumber(ARGV[3])
if wait < 0 then
  local failed = tonumber(redis.call('HGET', key('count'), id))
  local first, factor = policy.retry_first_s or 1, policy.retry_factor or 2
  local longest = math.min(first * factor ^ (failed - 1), policy.retry_max_s or 300)
  wait = longest * (1 - (policy.retry_jitter or 0.2) * math.random()) * 1000000
end
again(id, wait, ARGV[4])
redis.call('PUBLISH', 'tidegate:news', queue)
return 1
"""
)

# id, holder, what was wrong
REJECT = _BEGIN + _HELD + "bury(id, 'rejected', ARGV[3]) return 1"

# id, holder: nobody has looked at it, so it does not count
RELEASE = (
    _BEGIN
    + _HELD
    + """
redis.call('HDEL', key('held'), id)
redis.call('HINCRBY', key('count'), id, -1)
redis.call('SADD', key('flagged'), id)
to_line(id)
redis.call('PUBLISH', 'tidegate:news', queue)
return 1
"""
)

# holders that are gone: what they held is others'
INHERIT = (
    _BEGIN
    + """
local gone = {}
for _, holder in ipairs(ARGV) do gone[holder] = true end
local held = redis.call('HGETALL', key('held'))
for i = 1, #held, 2 do
  if gone[held[i + 1]] then again(held[i], 0, 'its consumer has gone') end
end
redis.call('PUBLISH', 'tidegate:news', queue)
return 1
"""
)

LOOK = _BEGIN + "return redis.call('ZCARD', key('ready'))"

DELETE = (
    _BEGIN
    + """
local parts = {'body', 'place', 'count', 'deaths', 'held', 'ready', 'later', 'expiry', 'flagged'}
for _, part in ipairs(parts) do redis.call('DEL', key(part)) end
redis.call('HDEL', 'tidegate:queues', queue)
redis.call('PUBLISH', 'tidegate:news', queue)
return 1
"""
)
