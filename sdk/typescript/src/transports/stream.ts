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
          const said = JSON.parse(line);
          if (said.positions) link.begin(Object.entries(said.positions), query, time);
          else if (said.gap) host.hub.hear({ channel: said.channel, ...said.gap });
          else if (said.drain) host.say('drain', said.drain.after_ms);
          else if (!said.denied) host.hub.hear(said);
        }
      });
    }),
};
