// A session over one WebSocket: `/v1/connect`, subprotocol `millrace.v1+json`. Source: docs/reference/protocol.md,
// "WebSocket".
import { closeError, refused, type MillraceError } from '../errors.js';
import type { LinkHost, Transport } from '../link.js';
import { openSession, type Dial } from './session.js';

const dial: Dial = (host, token, receive, end) => {
  const protocols = ['millrace.v1+json'];
  if (token !== undefined) protocols.push(`bearer.${token}`);
  const url = `${host.base.replace(/^http/, 'ws')}/v1/connect${host.heartbeatMs ? `?heartbeat=${host.heartbeatMs}ms` : ''}`;
  const socket: WebSocket = new ((host.WebSocket ?? globalThis.WebSocket) as typeof WebSocket)(url, protocols);
  let detail: string | undefined;
  // A close event follows. Only Node's implementations report the cause.
  socket.onerror = (event) => (detail = (event as ErrorEvent).message);
  socket.onclose = async ({ code, reason }) => end((await refusal(host, token)) ?? closeError(code, reason || detail, url));
  socket.onmessage = ({ data }) => receive(data);
  return {
    send: (text) => socket.send(text),
    close() {
      socket.onmessage = socket.onclose = null;
      socket.close();
    },
  };
};

/**
 * Returns why the server refused the first WebSocket of a page from another origin. Browsers hide the reason from
 * scripts, so this function sends a request, and the response shows whether the origin and the token are allowed.
 */
async function refusal({ base, counts, fetch: send = fetch }: LinkHost, token: string | undefined): Promise<MillraceError | undefined> {
  if (counts.transport || !globalThis.location || `${base}/`.startsWith(`${location.origin}/`)) return undefined;
  try {
    const answer = await send(`${base}/v1/connect`, token === undefined ? {} : { headers: { Authorization: `Bearer ${token}` } });
    return /40[13]/.test(`${answer.status}`) ? refused(await answer.json()) : undefined;
  } catch {
    // The request failed, or the response does not come from the server.
    return undefined;
  }
}

export const websocket: Transport = {
  name: 'websocket',
  usable: (options) => !!(options.WebSocket ?? globalThis.WebSocket),
  open: (host) => openSession(host, dial),
};
