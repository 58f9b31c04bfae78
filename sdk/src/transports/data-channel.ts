// A session over data channels of WebRTC: an offer by `POST /v1/connect`, then lines over UDP. What is read with policy `latest`
// comes on a channel of its own, where what is lost is not sent again. Source: docs/protocol.md, "Data channels".
import { closeError, MillraceError, problem, toError } from '../errors.js';
import type { Transport } from '../link.js';
import { send } from '../request.js';
import { openSession, type Carrier, type Dial } from './session.js';

/** Most characters of one message: browsers differ in how much they take, and the server reads a stream of lines. */
const PIECE = 16 * 1024;

/** A session over a connection that there is; `closePeer`: with it the connection ends, too. */
function carry(peer: RTCPeerConnection, closePeer: boolean, ...[host, , hear, end, signal]: Parameters<Dial>): Carrier {
  const session = peer.createDataChannel('millrace');
  const latest = peer.createDataChannel('latest', { ordered: false, maxRetransmits: 0 });
  let rest = '';
  let newest = 0;
  const lines = (text: string): void =>
    text.split('\n').forEach((line) => {
      if (!line || signal.aborted) return;
      if (!line.startsWith('{"push":"close"')) return hear(line);
      const { code, reason } = JSON.parse(line);
      end(closeError(code, reason, host.base));
    });
  const lost = (): void => end(new MillraceError('network', `the data channel to ${host.base} is gone`));
  session.onmessage = ({ data }: MessageEvent<string>) => {
    const whole = data.lastIndexOf('\n') + 1;
    if (!whole) return void (rest += data);
    const said = rest + data.slice(0, whole);
    rest = data.slice(whole);
    lines(said);
  };
  latest.onmessage = ({ data }: MessageEvent<string>) => {
    const number = parseInt(data);
    // What comes behind its successor is old.
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
      // What the server says first may be heard before that it is open.
      if (session.readyState === 'connecting') return session.addEventListener('open', () => this.send(text), { once: true });
      // It has ended, and says so in a moment.
      if (session.readyState !== 'open') return lost();
      for (let at = 0, line = `${text}\n`; at < line.length; ) {
        // A pair of surrogates is one character, which no message may cut.
        const end = at + PIECE - Number(/[\uD800-\uDBFF]/.test(line[at + PIECE - 1] ?? ''));
        try {
          session.send(line.slice(at, end));
        } catch {
          // The buffer is full. The rest of the line would be missing, so the session ends.
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

const dial: Dial = (host, token, hear, end, signal) => {
  const peer = new RTCPeerConnection();
  const carrier = carry(peer, true, host, token, hear, end, signal);

  async function connect(): Promise<void> {
    await peer.setLocalDescription();
    const headers: Record<string, string> = { 'content-type': 'application/sdp' };
    if (token !== undefined) headers['authorization'] = `Bearer ${token}`;
    const body = peer.localDescription!.sdp;
    // Its own candidates are not waited for: the server learns where a datagram comes from.
    const answer = await send(host.fetch, `${host.base}/v1/connect`, { method: 'POST', headers, body, signal });
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

/** The same beside the media of a connection with the switching unit, which is not ended with it. */
export const besideMedia = (peer: RTCPeerConnection): Transport => ({
  name: 'data-channel',
  open: (host) => openSession(host, (...dialled) => carry(peer, false, ...dialled)),
});
