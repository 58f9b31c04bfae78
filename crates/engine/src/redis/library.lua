-- What has to happen at once, at the server. Loaded as a function library, since its variables live as long as the server's process does: a
-- script would have to ask for the run id with every publication.
--
-- Keys of one channel, all with one hash tag: KEYS[1] its meta (hash), KEYS[2] its log (stream, id = offset).
-- Meta: e epoch, o newest offset, m its time, c bytes ever, f bytes before the oldest held and a its time (both at least), t and u time and
-- offset of the newest that was dropped for age or bytes, r run id, l the epochs before (see `inherit`), x when the keys were last given their
-- life, T:NODE newest batch of a node.
-- A keyed state has three more, see `state_of`, and its keys with a time to live are in a sorted set of the bucket: 'CHANNEL KEY' by expiry.
-- While the state has keys, nothing of it expires, besides the log.
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

-- The keys of a keyed state: entries (hash, key -> entry of the log), offsets (sorted set, key by offset), deletions (sorted set, the offsets of
-- the deletions in the log, and of the newest that the log has dropped), expiry (see above).
local function state_of(keys, at)
  return { entries = keys[at], offsets = keys[at + 1], deletions = keys[at + 2], expiry = keys[at + 3] }
end

-- A state whose channel was lost, as happens to a server that evicts keys, is no state of the new channel.
local function forget_lost(c, state)
  if c.o == 0 then
    redis.call('DEL', state.entries, state.offsets, state.deletions)
  end
end

-- Offset and expiry (or 0) of the newest publication of a key; nothing if the state does not contain the key.
local function known_of(state, key)
  local entry = redis.call('HGET', state.entries, key)
  if entry then
    local _, _, offset, _, expires = struct.unpack('>BI4I8I8I8', entry)
    return offset, expires
  end
end

-- The offset up to which deletions may be missing: the log has dropped them. Of these, only the newest is kept.
local function lost_deletions(c, state)
  local first = '(' .. number(c.o + 1 - redis.call('XLEN', c.log))
  local lost = redis.call('ZREVRANGEBYSCORE', state.deletions, first, '-inf', 'LIMIT', 0, 1)[1]
  if not lost then
    return 0
  end
  redis.call('ZREMRANGEBYSCORE', state.deletions, '-inf', '(' .. lost)
  return tonumber(lost)
end

-- The kind of a deletion in the tail of a publication, see `remote/tail.rs`.
local DELETION = 5

-- Key of a publication, and whether it is a deletion.
local function key_of(tail)
  local kind, length = struct.unpack('>BI2', tail)
  return string.sub(tail, 4, length + 2), kind == DELETION
end

-- Whether a publication may enter: nothing if so, else two words for the answer. `condition` is '' (none), '0' (the key must not exist) or
-- 'EPOCH OFFSET' (its newest publication).
local function refusal(c, state, condition, keys_max, tail, now)
  local key, is_deletion = key_of(tail)
  local offset, expires = known_of(state, key)
  local current = offset and (expires == 0 or expires > now) and offset or 0
  if condition ~= '' then
    local epoch, wanted = string.match(condition, '^(%d+) (%d+)$')
    local is_met
    if epoch then
      -- A position of an epoch before is the same publication, as far as the log goes on from there.
      local known = known_to(c, tonumber(epoch))
      wanted = tonumber(wanted)
      is_met = current > 0 and wanted == current and known and wanted <= known
    else
      is_met = current == 0
    end
    if not is_met then
      return '!' .. number(c.e) .. ' ' .. number(current)
    end
  end
  if not offset and not is_deletion and redis.call('HLEN', state.entries) >= keys_max then
    return '+ 0'
  end
end

-- The state after a publication that has just entered the log.
local function put(c, state, channel, tail, entry, expires)
  local key, is_deletion = key_of(tail)
  local name = channel .. ' ' .. key
  local _, before = known_of(state, key)
  if is_deletion then
    redis.call('HDEL', state.entries, key)
    redis.call('ZREM', state.offsets, key)
    redis.call('ZADD', state.deletions, number(c.o), number(c.o))
  else
    redis.call('HSET', state.entries, key, entry)
    redis.call('ZADD', state.offsets, number(c.o), key)
  end
  if not is_deletion and expires > 0 then
    redis.call('ZADD', state.expiry, number(expires), name)
  elseif before and before > 0 then
    redis.call('ZREM', state.expiry, name)
  end
end

-- Before publications enter: the time that they get.
local function begin(c, now)
  local time = math.max(c.m, now)
  if redis.call('XLEN', c.log) == 0 then
    c.f, c.a = c.c, time
  end
  return time
end

-- A publication enters the log. Its entry.
local function add(c, time, expires, tail, count_max)
  c.o = c.o + 1
  local entry = struct.pack('>BI4I8I8I8', 1, c.e, c.o, time, expires) .. tail
  redis.call('XADD', c.log, 'MAXLEN', count_max, number(c.o) .. '-0', 'p', entry, 'b', number(c.c))
  c.c = c.c + #tail - 7
  return entry
end

-- After publications have entered (`entries`, of which there may be none): limits, lifetimes, and the message to the nodes. `to`: channel,
-- index of the bucket, S in a cluster, pub/sub channel of the channel, that of its bucket. `token` is a field and its value, if any.
local function finish(c, state, now, time, bytes_max, age_max, to, entries, token)
  trim(c, now, bytes_max, age_max)
  -- A state whose first key has come lives from now on; one whose last key has gone expires like any other channel.
  local has_keys = state and redis.call('EXISTS', state.entries) == 1
  if c.o > 0 and (now - c.x > age_max / 8 or (state and state.had_keys ~= has_keys)) then
    local life = age_max + math.floor(age_max / 8) + 1000
    c.x = now
    redis.call('PEXPIRE', c.log, life)
    for _, key in ipairs({ c.meta, state and state.deletions or nil }) do
      if has_keys then
        redis.call('PERSIST', key)
      else
        redis.call('PEXPIRE', key, life + META_MS)
      end
    end
    redis.call('ZADD', to.index, has_keys and '+inf' or number(now + life), to.channel)
  end
  redis.call('HSET', c.meta, 'o', number(c.o), 'm', number(time), 'c', number(c.c), 'f', number(c.f), 'a', number(c.a),
    't', number(c.t), 'u', number(c.u), 'x', number(c.x), unpack(token))
  if state then
    lost_deletions(c, state)
  end
  if #entries > 0 then
    local message = struct.pack('>BB', 1, #to.channel) .. to.channel .. table.concat(entries)
    if to.how == 'S' then
      redis.call('SPUBLISH', to.one, message)
      redis.call('SPUBLISH', to.all, message)
    else
      redis.call('PUBLISH', to.one, message)
    end
  end
end

-- KEYS: meta, log, index of the bucket, for a state its four, idempotency keys. Pub/sub channels are none: a slot that moves would seem to have
-- moved halfway.
-- ARGV: channel, seed, count, bytes and age bounds, node, number of the batch, 1 if a channel may be created, S in a cluster, pub/sub channel
-- of the channel, that of its bucket, most keys of a state (0: it is none); then per publication: milliseconds that it lives or 0, place of its
-- idempotency key in KEYS or 0, the publication without its head, and in a state its condition (see `refusal`).
-- Answer: two words per publication: its epoch and offset; `!EPOCH` and the offset of the key's newest publication or 0 if the condition does
-- not hold; `+` and 0 for a key too many.
local function append(keys, args)
  local meta, log = keys[1], keys[2]
  local count_max, bytes_max, age_max, keys_max = tonumber(args[3]), tonumber(args[4]), tonumber(args[5]), tonumber(args[12])
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
  local state = keys_max > 0 and state_of(keys, 4)
  if state then
    forget_lost(c, state)
    state.had_keys = redis.call('EXISTS', state.entries) == 1
  end
  local time = begin(c, now)
  local answer, entries = {}, {}
  for i = 13, #args, state and 4 or 3 do
    local ttl, place, tail = tonumber(args[i]), tonumber(args[i + 1]), args[i + 2]
    local known = place > 0 and redis.call('GET', keys[place])
      or state and refusal(c, state, args[i + 3], keys_max, tail, now)
    if known then
      answer[#answer + 1] = known
    else
      local expires = ttl > 0 and now + ttl or 0
      local entry = add(c, time, expires, tail, count_max)
      if state then
        put(c, state, args[1], tail, entry, expires)
      end
      local position = number(c.e) .. ' ' .. number(c.o)
      if place > 0 then
        redis.call('SET', keys[place], position, 'PX', IDEMPOTENCY_MS)
      end
      answer[#answer + 1] = position
      entries[#entries + 1] = entry
    end
  end
  answer = table.concat(answer, ' ')
  local to = { channel = args[1], index = keys[3], how = args[9], one = args[10], all = args[11] }
  finish(c, state, now, time, bytes_max, age_max, to, entries, { field, args[7] .. ' ' .. number(now) .. ' ' .. answer })
  return answer
end

-- Deletes keys of a state whose time to live has ended. Whoever comes second finds nothing to delete.
-- KEYS: meta, log, index of the bucket, the four of the state. ARGV: channel, seed, count, bytes and age bounds, S in a cluster, pub/sub
-- channel of the channel, that of its bucket; keys.
local function expire(keys, args)
  local count_max, bytes_max, age_max = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local c = open(keys[1], keys[2], args[2])
  local state = state_of(keys, 4)
  forget_lost(c, state)
  state.had_keys = redis.call('EXISTS', state.entries) == 1
  local now = now_ms()
  local time = begin(c, now)
  local entries = {}
  for i = 9, #args do
    local key = args[i]
    local _, expires = known_of(state, key)
    if not expires or expires == 0 then
      redis.call('ZREM', state.expiry, args[1] .. ' ' .. key)
    elseif expires > now then
      redis.call('ZADD', state.expiry, number(expires), args[1] .. ' ' .. key)
    else
      local tail = struct.pack('>BI2', DELETION, #key + 1) .. key .. struct.pack('>I4', 0)
      local entry = add(c, time, 0, tail, count_max)
      put(c, state, args[1], tail, entry, 0)
      entries[#entries + 1] = entry
    end
  end
  if #entries > 0 then
    local to = { channel = args[1], index = keys[3], how = args[6], one = args[7], all = args[8] }
    finish(c, state, now, time, bytes_max, age_max, to, entries, {})
  end
  return #entries
end

-- KEYS: the sorted sets of expiry. ARGV: how many. Answer: 'CHANNEL KEY' of keys whose time to live has ended.
local function due(keys, args)
  local now, left, all = number(now_ms()), tonumber(args[1]), {}
  for _, expiry in ipairs(keys) do
    if left == 0 then
      break
    end
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, left)) do
      all[#all + 1] = name
      left = left - 1
    end
  end
  return all
end

-- How many keys of a state are looked at together.
local STATE_CHUNK = 128
-- How many such chunks one call may look at, most of which may have expired.
local STATE_CHUNKS_MAX = 16

-- A part of the state: its entries, and the deletions in the log since the reader began, by offset.
-- KEYS: meta, log, the first three of the state. ARGV: seed, bytes and age bounds, epoch of the reader's place (nothing: it begins), its offset,
-- the newest offset when the reader began, most publications and bytes.
-- Answer: epoch, newest offset, offset when the reader began, 1 if the reader has to begin anew, 1 if nothing follows, offset of the end of
-- this part, entries.
local function read_state(keys, args)
  local c = open(keys[1], keys[2], args[1])
  local state = state_of(keys, 3)
  forget_lost(c, state)
  local now = now_ms()
  if trim(c, now, tonumber(args[2]), tonumber(args[3])) then
    save_bounds(c)
  end
  local after, began, is_gap = 0, c.o, 0
  if args[4] ~= '' then
    local offset, since = tonumber(args[5]), tonumber(args[6])
    if tonumber(args[4]) == c.e and offset <= c.o and since <= c.o and since >= lost_deletions(c, state) then
      after, began = offset, since
    else
      is_gap = 1
    end
  end
  local count_max, bytes_max = tonumber(args[7]), tonumber(args[8])
  local entries, bytes = {}, 0
  local function answer(is_end)
    local last = is_end and c.o or after
    return { number(c.e), number(c.o), number(began), is_gap, is_end and 1 or 0, number(last), entries }
  end
  for _ = 1, STATE_CHUNKS_MAX do
    local held = redis.call('ZRANGEBYSCORE', state.offsets, '(' .. number(after), '+inf', 'WITHSCORES', 'LIMIT', 0, STATE_CHUNK)
    local deleted = '(' .. number(math.max(after, began))
    local offsets = redis.call('ZRANGEBYSCORE', state.deletions, deleted, '+inf', 'LIMIT', 0, STATE_CHUNK)
    local key_at = {}
    for i, offset in ipairs(offsets) do
      offsets[i] = tonumber(offset)
    end
    for i = 1, #held, 2 do
      local offset = tonumber(held[i + 1])
      key_at[offset] = held[i]
      offsets[#offsets + 1] = offset
    end
    if #offsets == 0 then
      return answer(true)
    end
    table.sort(offsets)
    for i = 1, math.min(#offsets, STATE_CHUNK) do
      local offset, entry = offsets[i], nil
      if key_at[offset] then
        entry = redis.call('HGET', state.entries, key_at[offset])
        -- The reader may hold an older value of what has changed since it began: it gets the new one, and the deletion next.
        local expires = entry and offset <= began and select(5, struct.unpack('>BI4I8I8I8', entry)) or 0
        entry = (expires == 0 or expires > now) and entry
      else
        local id = number(offset) .. '-0'
        local item = redis.call('XRANGE', c.log, id, id)[1]
        entry = item and item[2][2]
      end
      if entry then
        local cost = #entry - 36
        if #entries >= count_max or (#entries > 0 and bytes + cost > bytes_max) then
          return answer(false)
        end
        entries[#entries + 1] = entry
        bytes = bytes + cost
      end
      after = offset
    end
  end
  return answer(false)
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
