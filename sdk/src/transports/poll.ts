// Plain polling: one short request every `pollMs`. Source: docs/protocol.md, "Reading".
import { polling } from './polling.js';
import type { Transport } from '../link.js';

export const poll: Transport = {
  name: 'poll',
  usable: () => true,
  open: (host) => polling('poll', host, { wait: 0, everyMs: host.options.pollMs ?? 1000 }),
};
