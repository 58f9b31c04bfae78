// A session over one WebSocket: `/v1/connect`, subprotocol `millrace.v1+json`. Source: docs/protocol.md, "WebSocket".
import { closeError, refused, type MillraceError } from '../errors.js';
import type { LinkHost, Transport } from '../link.js';
import { openSession, type Dial } from './session.js';

const dial: Dial = (host, token, hear, end) => {
  const protocols = ['millrace.v1+json'];
  if (token !== undefined) protocols.push(`bearer.${token}`);
  const url = `${host.base.replace(/^http/, 'ws')}/v1/connect${host.heartbeatMs ? `?heartbeat=${host.heartbeatMs}ms` : ''}`;
  const socket: WebSocket = new ((host.WebSocket ?? globalThis.WebSocket) as typeof WebSocket)(url, protocols);
  let detail: string | undefined;
  // A close event follows; only Node's implementations say what went wrong.
  socket.onerror = (event) => (detail = (event as ErrorEvent).message);
  socket.onclose = async ({ code, reason }) => end((await refusal(host, token)) ?? closeError(code, reason || detail, url));
  socket.onmessage = ({ data }) => hear(data);
  return {
    send: (text) => socket.send(text),
    close() {
      socket.onmessage = socket.onclose = null;
      socket.close();
    },
  };
};

/**
 * Returns why the server refused the first WebSocket of a page of another origin. Browsers hide that from scripts, so
 * this sends a request, to which the server answers whether the origin and the token are allowed.
 */
async function refusal({ base, counts, fetch: send = fetch }: LinkHost, token: string | undefined): Promise<MillraceError | undefined> {
  if (counts.transport || !globalThis.location || `${base}/`.startsWith(`${location.origin}/`)) return undefined;
  try {
    const answer = await send(`${base}/v1/connect`, token === undefined ? {} : { headers: { Authorization: `Bearer ${token}` } });
    return /40[13]/.test(`${answer.status}`) ? refused(await answer.json()) : undefined;
  } catch {
    // There is no answer, or it is not the server's.
    return undefined;
  }
}

export const websocket: Transport = {
  name: 'websocket',
  usable: (options) => !!(options.WebSocket ?? globalThis.WebSocket),
  open: (host) => openSession(host, dial),
};
