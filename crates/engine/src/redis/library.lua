-- What has to happen at once, at the server. Loaded as a function library, since its variables live as long as the server's process does: a
-- script would have to ask for the run id with every publication.
--
-- Keys of one channel, all with one hash tag: KEYS[1] its meta (hash), KEYS[2] its log (stream, id = offset).
-- Meta: e epoch, o newest offset, m its time, c bytes ever, f bytes before the oldest held and a its time (both at least), t and u time and
-- offset of the newest that was dropped for age or bytes, r run id, l the epochs before (see `inherit`), x when the keys were last given their
-- life, T:NODE newest batch of a node.
-- All times are milliseconds of this server's clock.

-- How long an idempotency key is known.
local IDEMPOTENCY_MS = 5 * 60 * 1000
-- How long the epoch of a channel that was read but never written is known, unless somebody asks again.
local UNWRITTEN_MS = 10 * 60 * 1000
-- How much longer than its publications a channel's epoch and offset are known.
local META_MS = 24 * 60 * 60 * 1000
-- How long an answer that was lost may be asked for again, once there are many nodes.
local TOKEN_MS = 60 * 1000
local TOKENS_MAX = 100

local run

-- This life of this server. After a restart or a failover acknowledged publications may be gone, and their offsets would be given out again.
local function run_id()
  if not run then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  end
  return run
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function number(value)
  return string.format('%.0f', value)
end

-- How many epochs back the log knows which of their positions it has outlived.
local LINEAGE_MAX = 16

-- An epoch ends with this offset: 'epoch offset epoch offset ..', of each the newest offset that is still the same publication.
local function inherit(lineage, epoch, offset)
  local all = {}
  for before, left in string.gmatch(lineage, '(%d+) (%d+)') do
    all[#all + 1] = before .. ' ' .. number(math.min(tonumber(left), offset))
  end
  all[#all + 1] = number(epoch) .. ' ' .. number(offset)
  return table.concat(all, ' ', math.max(1, #all - LINEAGE_MAX + 1))
end

-- The newest offset up to which positions of an epoch are positions of this log; nothing if it is none of its epochs.
local function known_to(c, epoch)
  if epoch == c.e then
    return c.o
  end
  for before, left in string.gmatch(c.l, '(%d+) (%d+)') do
    if tonumber(before) == epoch then
      return tonumber(left)
    end
  end
end

local FIELDS = { 'r', 'e', 'o', 'm', 'c', 'f', 'a', 't', 'u', 'x' }

-- The channel; born by this, or with a new epoch if this is another life of the server: whoever has read what is left of the log goes on with
-- it, and whoever has read more is told that this is gone. `field` is one more of its fields.
local function open(meta, log, seed, field)
  local found = redis.call('HMGET', meta, 'r', 'e', 'o', 'm', 'c', 'f', 'a', 't', 'u', 'x', 'l', field or 'x')
  local c = { meta = meta, log = log, l = found[11] or '', extra = field and found[12] }
  for i = 2, #FIELDS do
    c[FIELDS[i]] = tonumber(found[i]) or 0
  end
  if found[1] ~= run_id() then
    if not found[1] then
      redis.call('DEL', log)
    end
    local epoch = tonumber(seed)
    if epoch == c.e then
      epoch = (epoch + 1) % 4294967296
    end
    if found[1] then
      c.l = inherit(c.l, c.e, c.o)
      redis.call('HSET', meta, 'l', c.l)
    end
    c.e = epoch
    redis.call('HSET', meta, 'r', run_id(), 'e', epoch)
    if not found[1] then
      redis.call('PEXPIRE', meta, UNWRITTEN_MS)
    end
  end
  return c
end

local function offset_of(item)
  return tonumber(string.match(item[1], '^%d+'))
end

-- An entry of the log: fields p (the publication) and b (bytes before it).
local function parse(item)
  local entry = item[2][2]
  return offset_of(item), tonumber(item[2][4]), struct.unpack('>I8', entry, 14), entry
end

-- Drops from the log what is too old or too much in bytes; true if anything has changed. What is over the count is gone already.
local function trim(c, now, bytes_max, age_max)
  local function is_over()
    return c.c - c.f > bytes_max or now - c.a >= age_max
  end
  local changed, size = false, 1
  while is_over() do
    local items = redis.call('XRANGE', c.log, '-', '+', 'COUNT', size)
    if #items == 0 then
      if c.f == c.c then
        break
      end
      c.f, c.a, changed = c.c, now, true
      break
    end
    local dropped
    for _, item in ipairs(items) do
      local offset, before, time = parse(item)
      changed = changed or c.f ~= before or c.a ~= time
      c.f, c.a = before, time
      if not is_over() then
        break
      end
      c.t, c.u, dropped = time, offset, offset
    end
    if dropped then
      changed = true
      redis.call('XTRIM', c.log, 'MINID', string.format('%.0f-0', dropped + 1))
    end
    size = 16
  end
  return changed
end

local function save_bounds(c)
  redis.call('HSET', c.meta, 'f', number(c.f), 'a', number(c.a), 't', number(c.t), 'u', number(c.u))
end

-- Tokens of nodes that have long gone.
local function forget_tokens(meta, now)
  local all = redis.call('HGETALL', meta)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'T:' then
      local time = tonumber(string.match(all[i + 1], '^%S+ (%S+)'))
      if now - time > TOKEN_MS then
        redis.call('HDEL', meta, all[i])
      end
    end
  end
end

-- KEYS: meta, log, index of the bucket, idempotency keys. Pub/sub channels are none: a slot that moves would seem to have moved halfway.
-- ARGV: channel, seed, count, bytes and age bounds, node, number of the batch, 1 if a channel may be created, S in a cluster, pub/sub channel
-- of the channel, that of its bucket; then per publication: milliseconds that it lives or 0, place of its idempotency key in KEYS or 0, the publication without its head.
-- Answer: epoch and offset of each, as text.
local function append(keys, args)
  local meta, log, index = keys[1], keys[2], keys[3]
  local count_max, bytes_max, age_max = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local field = 'T:' .. args[6]
  local c = open(meta, log, args[2], field)
  local now = now_ms()
  if c.extra then
    local known, _, answer = string.match(c.extra, '^(%S+) (%S+) (.*)$')
    if known == args[7] then
      return answer
    elseif tonumber(known) > tonumber(args[7]) then
      return redis.error_reply('STALE this batch comes after a later one')
    end
  elseif redis.call('HLEN', meta) > TOKENS_MAX then
    forget_tokens(meta, now)
  end
  if c.o == 0 and args[8] == '0' then
    return redis.error_reply('TOOMANY channels')
  end
  local time = math.max(c.m, now)
  if redis.call('XLEN', log) == 0 then
    c.f, c.a = c.c, time
  end
  local answer, message = {}, {}
  for i = 12, #args, 3 do
    local ttl, key, tail = tonumber(args[i]), tonumber(args[i + 1]), args[i + 2]
    local known = key > 0 and redis.call('GET', keys[key])
    if known then
      answer[#answer + 1] = known
    else
      c.o = c.o + 1
      local expires = ttl > 0 and now + ttl or 0
      local entry = struct.pack('>BI4I8I8I8', 1, c.e, c.o, time, expires) .. tail
      redis.call('XADD', log, 'MAXLEN', count_max, number(c.o) .. '-0', 'p', entry, 'b', number(c.c))
      c.c = c.c + #tail - 7
      local position = number(c.e) .. ' ' .. number(c.o)
      if key > 0 then
        redis.call('SET', keys[key], position, 'PX', IDEMPOTENCY_MS)
      end
      answer[#answer + 1] = position
      message[#message + 1] = entry
    end
  end
  answer = table.concat(answer, ' ')
  trim(c, now, bytes_max, age_max)
  local life = age_max + math.floor(age_max / 8) + 1000
  if now - c.x > age_max / 8 then
    c.x = now
    redis.call('PEXPIRE', log, life)
    redis.call('PEXPIRE', meta, life + META_MS)
    redis.call('ZADD', index, now + life, args[1])
  end
  redis.call('HSET', meta, 'o', number(c.o), 'm', number(time), 'c', number(c.c), 'f', number(c.f), 'a', number(c.a),
    't', number(c.t), 'u', number(c.u), 'x', number(c.x), field, args[7] .. ' ' .. number(now) .. ' ' .. answer)
  if #message > 0 then
    message = struct.pack('>BB', 1, #args[1]) .. args[1] .. table.concat(message)
    if args[9] == 'S' then
      redis.call('SPUBLISH', args[10], message)
      redis.call('SPUBLISH', args[11], message)
    else
      redis.call('PUBLISH', args[10], message)
    end
  end
  return answer
end

-- KEYS: meta, log. ARGV: seed, bytes and age bounds, what (now, earliest, newest, at, time), its value, most publications and bytes; for
-- `at` its epoch.
-- Answer: epoch, newest offset, now, offset before the first entry, offset that `time` means (for `at`: 1 if that place is in this log, whatever
-- its epoch was called), entries.
local function read(keys, args)
  local c = open(keys[1], keys[2], args[1])
  local now = now_ms()
  if trim(c, now, tonumber(args[2]), tonumber(args[3])) then
    save_bounds(c)
  end
  local what, value, count_max, bytes_max = args[4], tonumber(args[5]), tonumber(args[6]), tonumber(args[7])
  local function answer(after, entries, means)
    return { number(c.e), number(c.o), number(now), number(after), number(means or 0), entries }
  end
  if what == 'newest' then
    local item = redis.call('XREVRANGE', c.log, '+', '-', 'COUNT', 1)[1]
    return answer(c.o, { item and item[2][2] })
  end
  if what == 'now' then
    return answer(c.o, {})
  end
  local oldest = redis.call('XRANGE', c.log, '-', '+', 'COUNT', 1)[1]
  local first = oldest and offset_of(oldest) or c.o + 1
  local from, means = first, 0
  local known = what == 'at' and known_to(c, tonumber(args[8]))
  if known then
    from = math.max(first, math.min(value, known) + 1)
    means = value <= known and 1 or 0
  elseif what == 'time' then
    local low, high = first, c.o + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      local id = number(middle) .. '-0'
      local item = redis.call('XRANGE', c.log, id, id)[1]
      local time = item and select(3, parse(item))
      if time and time < value then
        low = middle + 1
      else
        high = middle
      end
    end
    from, means = low, low - 1
    -- The newest that was dropped: its time if it is known, else not later than the oldest held.
    local dropped = c.m
    if c.u == first - 1 then
      dropped = c.t
    elseif oldest then
      dropped = select(3, parse(oldest))
    end
    if first > 1 and from == first and dropped >= value then
      means = 0
    end
  end
  local entries, bytes, size = {}, 0, 16
  local next = from
  while next <= c.o and #entries < count_max and bytes < bytes_max do
    local items = redis.call('XRANGE', c.log, number(next) .. '-0', '+', 'COUNT', math.min(size, count_max - #entries))
    if #items == 0 then
      break
    end
    for _, item in ipairs(items) do
      local entry = item[2][2]
      entries[#entries + 1] = entry
      bytes = bytes + #entry
      next = offset_of(item) + 1
      if bytes >= bytes_max then
        break
      end
    end
    size = 128
  end
  return answer(from - 1, entries, means)
end

-- KEYS: metas and logs in turn, of one bucket. ARGV: seed. Answer: epoch and newest offset of each.
local function tops(keys, args)
  local answer = {}
  for i = 1, #keys, 2 do
    local c = open(keys[i], keys[i + 1], args[1])
    redis.call('PEXPIRE', keys[i], UNWRITTEN_MS, 'GT')
    answer[#answer + 1] = number(c.e)
    answer[#answer + 1] = number(c.o)
  end
  return answer
end

-- KEYS: indexes. Answer: how many channels have a past.
local function count(keys)
  local now, all = now_ms(), 0
  for _, index in ipairs(keys) do
    redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
    all = all + redis.call('ZCARD', index)
  end
  return all
end

-- KEYS: the nodes. ARGV: a node's name, milliseconds that it lives. Answer: now, all that live.
local function renew(keys, args)
  local now, nodes = now_ms(), keys[1]
  if tonumber(args[2]) > 0 then
    redis.call('ZADD', nodes, now + args[2], args[1])
  else
    redis.call('ZREM', nodes, args[1])
  end
  redis.call('ZREMRANGEBYSCORE', nodes, '-inf', now)
  return { number(now), redis.call('ZRANGE', nodes, 0, -1) }
end
