// A session over one WebSocket: `/v1/connect`, subprotocol `millrace.v1+json`. Source: docs/protocol.md, "WebSocket".
import { closeError } from '../errors.js';
import type { Transport } from '../link.js';
import { openSession, type Dial } from './session.js';

const dial: Dial = (host, token, hear, end) => {
  const protocols = ['millrace.v1+json'];
  if (token !== undefined) protocols.push(`bearer.${token}`);
  const url = `${host.base.replace(/^http/, 'ws')}/v1/connect${host.heartbeatMs ? `?heartbeat=${host.heartbeatMs}ms` : ''}`;
  const socket: WebSocket = new ((host.WebSocket ?? globalThis.WebSocket) as typeof WebSocket)(url, protocols);
  let detail: string;
  // A close event follows; only Node's implementations say what went wrong.
  socket.onerror = (event) => (detail = (event as ErrorEvent).message);
  socket.onclose = ({ code, reason }) => end(closeError(code, reason || detail));
  socket.onmessage = ({ data }) => hear(data);
  return {
    send: (text) => socket.send(text),
    close() {
      socket.onmessage = socket.onclose = null;
      socket.close();
    },
  };
};

export const websocket: Transport = {
  name: 'websocket',
  usable: (options) => !!(options.WebSocket ?? globalThis.WebSocket),
  open: (host) => openSession(host, dial),
};
