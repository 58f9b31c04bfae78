// A session over WebRTC data channels: an offer by `POST /v1/connect`, then lines over UDP. Messages with policy
// `latest` arrive on a separate channel, on which lost messages are not retransmitted. Source:
// docs/reference/protocol.md, "Data channels".
import { closeError, MillraceError, problem, toError } from '../errors.js';
import type { Transport } from '../link.js';
import { send } from '../request.js';
import { openSession, type Carrier, type Dial } from './session.js';

/** Maximum characters of one message. Browsers differ in their maximum, and the server reads a stream of lines. */
const PIECE = 16 * 1024;

/** Opens a session over an existing connection. With `closePeer`, the end of the session closes the connection. */
function carry(peer: RTCPeerConnection, closePeer: boolean, ...[host, , receive, end, signal]: Parameters<Dial>): Carrier {
  const session = peer.createDataChannel('millrace');
  const latest = peer.createDataChannel('latest', { ordered: false, maxRetransmits: 0 });
  let rest = '';
  let newest = 0;
  const lines = (text: string): void =>
    text.split('\n').forEach((line) => {
      if (!line || signal.aborted) return;
      if (!line.startsWith('{"push":"close"')) return receive(line);
      const { code, reason } = JSON.parse(line);
      end(closeError(code, reason, host.base));
    });
  const lost = (): void => end(new MillraceError('network', `the data channel to ${host.base} has closed`));
  session.onmessage = ({ data }: MessageEvent<string>) => {
    const whole = data.lastIndexOf('\n') + 1;
    if (!whole) return void (rest += data);
    const message = rest + data.slice(0, whole);
    rest = data.slice(whole);
    lines(message);
  };
  latest.onmessage = ({ data }: MessageEvent<string>) => {
    const number = parseInt(data);
    // A message that arrives after its successor is stale.
    if (number <= newest) return;
    host.counts.lost += number - newest - 1;
    newest = number;
    lines(data.slice(data.indexOf('\n')));
  };
  const check = (): void => void (/failed|closed/.test(peer.connectionState) && lost());
  session.onclose = lost;
  peer.addEventListener('connectionstatechange', check);
  return {
    send(text) {
      // The server's first message may arrive before the channel reports that it is open.
      if (session.readyState === 'connecting') return session.addEventListener('open', () => this.send(text), { once: true });
      // The channel has closed; its close event follows.
      if (session.readyState !== 'open') return lost();
      for (let at = 0, line = `${text}\n`; at < line.length; ) {
        // A surrogate pair is one character and must not be split between messages.
        const end = at + PIECE - +/[\uD800-\uDBFF]/.test(line[at + PIECE - 1] ?? '');
        try {
          session.send(line.slice(at, end));
        } catch {
          // The send buffer is full. The rest of the line would be missing, so the session ends.
          return lost();
        }
        at = end;
      }
    },
    close() {
      session.onclose = session.onmessage = latest.onmessage = null;
      peer.removeEventListener('connectionstatechange', check);
      if (closePeer) return peer.close();
      session.close();
      latest.close();
    },
  };
}

const dial: Dial = (host, token, receive, end, signal) => {
  const peer = new RTCPeerConnection();
  const carrier = carry(peer, true, host, token, receive, end, signal);

  async function connect(): Promise<void> {
    await peer.setLocalDescription();
    const headers = { 'Content-Type': 'application/sdp' };
    const body = peer.localDescription!.sdp;
    // The offer does not wait for local ICE candidates: the server learns the address from the first datagram.
    const answer = await send(host.fetch, `${host.base}/v1/connect`, token, { method: 'POST', headers, body, signal });
    if (answer.status !== 201) throw await problem(answer);
    await peer.setRemoteDescription({ type: 'answer', sdp: await answer.text() });
  }

  connect().catch((thrown) => end(toError(thrown)));
  return carrier;
};

export const dataChannel: Transport = {
  name: 'data-channel',
  byNameOnly: true,
  usable: () => !!globalThis.RTCPeerConnection,
  open: (host) => openSession(host, dial),
};

/**
 * The same session beside the media of a connection with the SFU. The end of the session does not close the connection.
 */
export const dataChannelOn = (peer: RTCPeerConnection): Transport => ({
  name: 'data-channel',
  open: (host) => openSession(host, (...dialled) => carry(peer, false, ...dialled)),
});

/** @deprecated Use `dataChannelOn`. The next version removes this name. */
export const besideMedia = dataChannelOn;
