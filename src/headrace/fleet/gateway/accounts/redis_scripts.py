"""The scripts that Redis runs, each at one stroke, and the names that they use.

All names of a deployment share one hash tag, so they lie in one slot of a cluster. Time is Redis' own: clocks of
gateways may differ. Amounts of money are whole numbers below 2^53, so Lua's doubles are exact.

    {prefix}:m:ID       a meter: a hash (level, at) for buckets, a number for places, a hash (spent, aside) for money
    {prefix}:holds      hold → its meters as JSON: [[name, kind, limit, amount], …]
    {prefix}:leases     hold → when it is given up, unless its gateway renews it
    {prefix}:lost:HOLD  what was charged for a hold that was given up; a late settlement corrects it
    {prefix}:void:HOLD  was settled before it was taken (the gateway stopped waiting for the answer): is not taken any more
    {prefix}:keys       name → created key; {prefix}:version counts its changes
"""

from typing import Final

#: Kinds are `MeterKind`: 1 requests, 2 tokens, 3 places, 4 money.
_METERS: Final = """
local function clock()
    local time = redis.call('TIME')
    return tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local function whole(number) return string.format('%.0f', number) end
local function fill(name, limit, now)
    local found = redis.call('HMGET', name, 'level', 'at')
    if not found[1] then return limit end
    local passed = math.max(0, now - tonumber(found[2]))
    return math.min(limit, tonumber(found[1]) + passed * limit / 60)
end
local function put(name, limit, level, now)
    redis.call('HSET', name, 'level', string.format('%.9f', level), 'at', string.format('%.6f', now))
    redis.call('EXPIRE', name, whole(math.ceil((limit - level) * 60 / limit) + 60))
end
local function settle(meter, used, now)
    local name, kind, limit, amount = meter[1], meter[2], meter[3], meter[4]
    if kind <= 2 then
        put(name, limit, math.min(limit, fill(name, limit, now) + amount - used), now)
    elseif kind == 3 then
        if redis.call('DECRBY', name, whole(amount)) <= 0 then redis.call('DEL', name) end
    else
        redis.call('HINCRBY', name, 'aside', whole(-amount))
        redis.call('HINCRBY', name, 'spent', whole(used))
    end
end
"""

#: KEYS: holds, leases, void. ARGV: hold, record, seconds of lease, then when each meter's period ends (0: never).
#: Returns the number of the meter that refuses, from 1 on, and seconds to wait (-1: its period); or 0.
TAKE: Final = (
    _METERS
    + """
local holds, leases, void = KEYS[1], KEYS[2], KEYS[3]
if redis.call('EXISTS', void) == 1 then return {-1, '0'} end
if redis.call('HEXISTS', holds, ARGV[1]) == 1 then return {0, '0'} end
local now = clock()
local meters = cjson.decode(ARGV[2])
local levels = {}
for i, meter in ipairs(meters) do
    local name, kind, limit, amount = meter[1], meter[2], meter[3], meter[4]
    if kind <= 2 then
        levels[i] = fill(name, limit, now)
        local missing = math.min(amount, limit) - levels[i]
        if missing > limit * 0.000001 then return {i, string.format('%.6f', missing * 60 / limit)} end
    elseif kind == 3 then
        if tonumber(redis.call('GET', name) or '0') + amount > limit then return {i, '1'} end
    else
        local found = redis.call('HMGET', name, 'spent', 'aside')
        local spent, aside = tonumber(found[1] or '0'), tonumber(found[2] or '0')
        if spent + amount > limit then return {i, '-1'} end
        if spent + aside + amount > limit then return {i, '1'} end
    end
end
for i, meter in ipairs(meters) do
    local name, kind, limit, amount = meter[1], meter[2], meter[3], meter[4]
    if kind <= 2 then
        put(name, limit, levels[i] - amount, now)
    elseif kind == 3 then
        redis.call('INCRBY', name, whole(amount))
    else
        redis.call('HINCRBY', name, 'aside', whole(amount))
        if tonumber(ARGV[3 + i]) > 0 then redis.call('EXPIREAT', name, ARGV[3 + i]) end
    end
end
redis.call('HSET', holds, ARGV[1], ARGV[2])
redis.call('ZADD', leases, string.format('%.6f', now + tonumber(ARGV[3])), ARGV[1])
return {0, '0'}
"""
)

#: KEYS: holds, leases, lost, void. ARGV: hold, requests, tokens, cost. Returns how many of its meters could not be
#: settled. A script that fails undoes nothing, so the record goes first: what came through is not settled a second time.
SETTLE: Final = (
    _METERS
    + """
local record, failed = redis.call('HGET', KEYS[1], ARGV[1]), 0
if not record then
    local lost = redis.call('GET', KEYS[3])
    if lost then
        redis.call('DEL', KEYS[3])
        for _, meter in ipairs(cjson.decode(lost)) do
            local more = whole(tonumber(ARGV[4]) - meter[2])
            if not pcall(redis.call, 'HINCRBY', meter[1], 'spent', more) then failed = failed + 1 end
        end
    else
        redis.call('SET', KEYS[4], '1', 'EX', 300)
    end
    return failed
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
local now = clock()
for _, meter in ipairs(cjson.decode(record)) do
    local used = 0
    if meter[2] == 1 then used = tonumber(ARGV[2]) end
    if meter[2] == 2 then used = tonumber(ARGV[3]) end
    if meter[2] == 4 then used = tonumber(ARGV[4]) end
    if not pcall(settle, meter, used, now) then failed = failed + 1 end
end
return failed
"""
)

#: KEYS: holds, leases. ARGV: what lost: names begin with, 1 to charge what is given up, how many at most.
#: Returns how many holds were given up.
SWEEP: Final = (
    _METERS
    + """
local now = clock()
local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.6f', now), 'LIMIT', 0, ARGV[3])
for _, id in ipairs(ids) do
    local record = redis.call('HGET', KEYS[1], id)
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    local is_read, meters = pcall(cjson.decode, record or '')
    if is_read then
        local charged = {}
        for _, meter in ipairs(meters) do
            local used = meter[4]
            if meter[2] == 4 then
                if ARGV[2] ~= '1' then used = 0 end
                charged[#charged + 1] = {meter[1], used}
            end
            pcall(settle, meter, used, now)
        end
        if #charged > 0 then redis.call('SET', ARGV[1] .. id, cjson.encode(charged), 'EX', 86400) end
    end
end
return #ids
"""
)

#: KEYS: leases. ARGV: seconds, holds.
RENEW: Final = (
    _METERS
    + """
local score = string.format('%.6f', clock() + tonumber(ARGV[1]))
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', score, ARGV[i]) end
return 1
"""
)
