// Patterns of channels (`cars/+/telemetry`, `cars/#`), laid over the hub that knows channels only. Source: docs/protocol.md,
// "WebSocket": a pattern resumes from the last position of every channel heard, and from a time for those that were not.
import { MillraceError } from './errors.js';
import { ago, attach, detach, policyOf, type Hub, type Wire } from './hub.js';
import { checkChannel, isNews } from './position.js';
import type { Message } from './subscription.js';
import type { Gap } from './types.js';

interface PatternWire extends Wire {
  readonly matches: RegExp;
  /** The last position of every channel heard. What comes next must be news to it. */
  readonly heard: Map<string, string>;
  /** The server's clock at the first reply, or how far it was asked to look back. */
  since?: string | undefined;
}

/** What tests whether `pattern` covers a channel: `+` is one level, `#` the rest, the parent included. Throws if it is no pattern. */
export function matcher(pattern: string): RegExp {
  // A `#` only as the last level. What is left of a pattern without its wildcards is a name.
  checkChannel(pattern.replace(/(^|\/)#$/, '$1+').replace(/(?<=^|\/)\+(?=\/|$)/g, '_'));
  return RegExp(`^${pattern.replace(/\./g, '\\.').replace(/\+/g, '[^/]+').replace(/(^|\/)#/, '($1.+)?')}$`);
}

/** `hub`, with patterns too. `changed`: the set of patterns has. */
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
        throw new MillraceError('rejected', joined ? `only from now can ${pattern} be joined` : 'a wildcard starts from now, earliest or seconds');
      }
      const wire = joined ?? { matches, readers: new Set(), heard: new Map(), since, liveFrom: 0 };
      const reader = attach(wires, pattern, wire, options, changed);
      if (wire.liveFrom) reader.start(wire.since!, true, 0n);
      return reader.subscription;
    },
    wanted: () => [
      ...hub.wanted(),
      ...[...wires].map(([channel, wire]) => ({ channel, policy: policyOf(wire), since: wire.since, positions: Object.fromEntries(wire.heard) })),
    ],
    started(channel, at) {
      const wire = wires.get(channel);
      if (!wire) return hub.started(channel, at);
      skew = at.time - Date.now();
      wire.since ??= String(at.time);
      wire.liveFrom = at.time;
      // Only the first counts.
      wire.readers.forEach((reader) => reader.start(wire.since!, at.recovered, 0n));
    },
    hear(item) {
      hub.hear(item);
      const { channel, time, position, to: at = position } = item as Message & Gap;
      for (const { matches, readers, heard, liveFrom } of wires.values()) {
        if (!liveFrom || !matches.test(channel) || !isNews(at, heard.get(channel))) continue;
        heard.set(channel, at);
        readers.forEach((reader) => reader.take(item, time < liveFrom));
      }
    },
    refused: (channel, cause) => detach(wires, channel, cause) || hub.refused(channel, cause),
    end(cause) {
      hub.end(cause);
      for (const pattern of [...wires.keys()]) detach(wires, pattern, cause);
    },
  };
}
