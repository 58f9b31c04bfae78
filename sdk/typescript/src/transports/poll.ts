// Plain polling: one short request every `pollMs`. Source: docs/reference/protocol.md, "Reading".
import { polling } from './polling.js';
import type { Transport } from '../link.js';

export const poll: Transport = {
  name: 'poll',
  open: (host) => polling('poll', host, { wait: 0, everyMs: host.pollMs ?? 1000 }),
};
