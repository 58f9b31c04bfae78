// Adds patterns of channels (`cars/+/telemetry`, `cars/#`) to a hub that supports only channels. Source:
// docs/reference/protocol.md, "WebSocket". A pattern resumes from the last position of every channel that was received,
// and from a time for all other channels.
import { MillraceError } from './errors.js';
import { ago, attach, detach, policyOf, type Hub, type Wire } from './hub.js';
import { checkChannel, isNewer } from './position.js';
import type { Message } from './subscription.js';
import type { Gap } from './types.js';

interface PatternWire extends Wire {
  readonly matches: RegExp;
  /** Last position received from each channel. Only a newer message is accepted. */
  readonly received: Map<string, string>;
  /** The server's clock at the first reply, or the earlier time that the application asked for. */
  since?: string | undefined;
}

/**
 * Returns an expression that tests whether `pattern` covers a channel. `+` matches one level; `#` matches the rest,
 * including the parent. Throws if `pattern` is not valid.
 */
export function matcher(pattern: string): RegExp {
  // `#` is allowed only as the last level. With each wildcard replaced, a pattern must be a channel name.
  checkChannel(pattern.replace(/(^|\/)#$/, '$1+').replace(/(?<=^|\/)\+(?=\/|$)/g, '_'));
  return RegExp(`^${pattern.replace(/\./g, '\\.').replace(/\+/g, '[^/]+').replace(/(^|\/)#/, '($1.+)?')}$`);
}

/** Returns `hub` with support for patterns. `changed` is called when the set of patterns has changed. */
export function wildcards(hub: Hub, changed: () => void): Hub {
  const wires = new Map<string, PatternWire>();
  /** Server's clock minus this machine's, ms. */
  let skew = 0;

  return {
    subscribe(pattern, options) {
      if (!/[+#]/.test(pattern)) return hub.subscribe(pattern, options);
      const matches = matcher(pattern);
      const { from = 'now' } = options;
      const joined = wires.get(pattern);
      const since = from === 'earliest' ? from : typeof from === 'object' && 'seconds' in from ? ago(from.seconds, skew) : undefined;
      if (from !== 'now' && (joined || !since)) {
        throw new MillraceError('rejected', joined ? `${pattern} is already subscribed: use from 'now'` : 'a wildcard starts from now, earliest or seconds');
      }
      const wire = joined ?? { matches, readers: new Set(), received: new Map(), since, liveFrom: 0 };
      const reader = attach(wires, pattern, wire, options, changed);
      if (wire.liveFrom) reader.start(wire.since!, true, 0n);
      return reader.subscription;
    },
    wanted: () => [
      ...hub.wanted(),
      ...[...wires].map(([channel, wire]) => ({ channel, policy: policyOf(wire), since: wire.since, positions: Object.fromEntries(wire.received) })),
    ],
    started(channel, at) {
      const wire = wires.get(channel);
      if (!wire) return hub.started(channel, at);
      skew = at.time - Date.now();
      wire.since ??= String(at.time);
      // The reply for `earliest` has the time 0.
      wire.liveFrom = at.time || Date.now();
      // Only the first call of `start` counts.
      wire.readers.forEach((reader) => reader.start(wire.since!, at.recovered, 0n));
    },
    receive(item) {
      hub.receive(item);
      const { channel, time, position, to: at = position } = item as Message & Gap;
      for (const { matches, readers, received, liveFrom } of wires.values()) {
        if (!liveFrom || !matches.test(channel) || !isNewer(at, received.get(channel))) continue;
        received.set(channel, at);
        readers.forEach((reader) => reader.take(item, time < liveFrom));
      }
    },
    refused: (channel, cause) => detach(wires, channel, cause) || hub.refused(channel, cause),
    end(cause) {
      hub.end(cause);
      wires.forEach((_, pattern) => detach(wires, pattern, cause));
    },
  };
}
