// The loop of `poll` and `long-poll`: request, deliver, and request again from the new position.
import { parsePositions, serverTime, type Query } from './http.js';
import type { LinkHost } from '../link.js';
import type { Message } from '../subscription.js';
import type { Gap, TransportName } from '../types.js';
import { HttpLink } from './http-link.js';

interface Answer {
  readonly positions: Record<string, string>;
  readonly messages: Message[];
  readonly gaps?: (Gap & { channel: string })[];
}

/** Maximum number of publications in one response. */
const LIMIT = 1000;
/** Time limit for a response that the server does not hold, ms. */
const ANSWER_MS = 10_000;
/**
 * Minimum time between two held requests if the first returned nothing: a proxy may answer a request that the server
 * would hold.
 */
const HELD_MS_MIN = 500;

export function polling(name: TransportName, host: LinkHost, { wait, everyMs }: { wait: number; everyMs: number }): HttpLink {
  return new HttpLink(name, host, async (link, first, signal) => {
    let query = first;
    for (let held = 0; !signal.aborted; held = wait) {
      // The first response arrives at once and contains the positions, so a cut before the first message loses nothing.
      host.report('alive', held * 1000 + everyMs + ANSWER_MS);
      const since = Date.now();
      const ask: Query = [...query, ['limit', LIMIT], ['wait', held || undefined]];
      const { body, response } = await link.http.json<Answer>('/v1/stream', ask, { signal, timeoutMs: held * 1000 + ANSWER_MS });
      if (signal.aborted) return;
      const positions = body ? Object.entries(body.positions) : parsePositions(response.headers.get('Millrace-Position') ?? '');
      if (query === first) link.begin(positions, query, serverTime(response));
      host.report('alive', wait * 1000 + everyMs + ANSWER_MS);
      for (const item of [...(body?.gaps ?? []), ...(body?.messages ?? [])]) host.hub.receive(item);
      if (positions.length) query = [...first.filter(([key]) => key !== 'channel'), ...positions.map(([channel, position]) => ['channel', `${channel}@${position}`] as const)];
      const early = held && !body ? since + HELD_MS_MIN - Date.now() : 0;
      if (everyMs ? (body?.messages.length ?? 0) < LIMIT : early > 0) await link.pause(everyMs || early, signal);
    }
  });
}
