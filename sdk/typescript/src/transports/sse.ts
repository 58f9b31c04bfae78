// Server-sent events over `fetch`. `EventSource` is not used because it accepts no headers and stops at the first
// status 500.
import type { Transport } from '../link.js';
import { SseParser } from '../sse-parser.js';
import { parsePositions } from './http.js';
import { HttpLink } from './http-link.js';
import { reading } from './reading.js';

export const sse: Transport = {
  name: 'sse',
  open: (host) =>
    new HttpLink('sse', host, async (link, query, signal) => {
      const parser = new SseParser();
      let begun = false;
      await reading(link, 'text/event-stream', query, signal, (piece, time) => {
        for (const { event, data, id } of parser.push(piece)) {
          if (!begun) link.begin(parsePositions(id ?? ''), query, time);
          begun = true;
          if (data === undefined) continue;
          const message = JSON.parse(data);
          if (event === 'message' || event === 'gap') host.hub.receive(message);
          else if (event === 'drain') host.report('drain', message.after_ms);
        }
      });
    }),
};
