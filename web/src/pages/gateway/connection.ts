/** What both ends of a data channel need. */

/** The label of the channel, as with a server. */
export const LABEL = 'millrace';
/** Candidates that are not found by then are not told. */
const GATHER_MS = 1_500;

/** A description with its candidates in it: nothing is said afterwards. */
export async function whole(connection: RTCPeerConnection): Promise<string> {
  await connection.setLocalDescription();
  if (connection.iceGatheringState !== 'complete') {
    await new Promise<void>((resolve) => {
      const late = setTimeout(resolve, GATHER_MS);
      connection.addEventListener('icegatheringstatechange', () => {
        if (connection.iceGatheringState !== 'complete') return;
        clearTimeout(late);
        resolve();
      });
    });
  }
  return connection.localDescription?.sdp ?? '';
}

let known: { readonly until: number; readonly servers: Promise<RTCIceServer[]> } | undefined;

/** The server's own relay, where it has one (docs/turn.md). */
export function relays(token: string | undefined): Promise<RTCIceServer[]> {
  if (known && known.until > Date.now()) return known.servers;
  const ask = async (): Promise<RTCIceServer[]> => {
    const response = await fetch('/v1/turn', { method: 'POST', signal: AbortSignal.timeout(5_000), ...(token && { headers: { Authorization: `Bearer ${token}` } }) });
    return response.ok ? ((await response.json()) as { ice_servers: RTCIceServer[] }).ice_servers : [];
  };
  known = { until: Date.now() + 60_000, servers: ask().catch(() => []) };
  return known.servers;
}
