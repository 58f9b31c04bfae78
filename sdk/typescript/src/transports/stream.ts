// HTTP streaming: one JSON line per publication. Source: docs/reference/protocol.md, "Reading".
import type { Transport } from '../link.js';
import { HttpLink } from './http-link.js';
import { reading } from './reading.js';

export const httpStream: Transport = {
  name: 'http-stream',
  open: (host) =>
    new HttpLink('http-stream', host, async (link, query, signal) => {
      let rest = '';
      await reading(link, 'application/x-ndjson', query, signal, (piece, time) => {
        const lines = piece.split('\n');
        lines[0] = rest + lines[0];
        rest = lines.pop()!;
        for (const line of lines) {
          if (!line) continue;
          const message = JSON.parse(line);
          if (message.positions) link.begin(Object.entries(message.positions), query, time);
          else if (message.gap) host.hub.receive({ channel: message.channel, ...message.gap });
          else if (message.drain) host.report('drain', message.drain.after_ms);
          else if (!message.denied) host.hub.receive(message);
        }
      });
    }),
};
