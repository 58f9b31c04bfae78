/** Functions for both ends of a data channel. */

/** Label of the data channel, the same as with a server. */
export const LABEL = 'millrace';
/** Time limit for gathering candidates. Later candidates are not sent. */
const GATHER_MS = 1_500;

/** Returns a local description that contains its candidates, because no candidates are sent afterwards. */
export async function completeDescription(connection: RTCPeerConnection): Promise<string> {
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

/** Returns the server's TURN relay, if it has one (docs/reference/turn.md). */
export function fetchRelays(token: string | undefined): Promise<RTCIceServer[]> {
  if (known && known.until > Date.now()) return known.servers;
  const ask = async (): Promise<RTCIceServer[]> => {
    const response = await fetch('/v1/turn', { method: 'POST', signal: AbortSignal.timeout(5_000), ...(token && { headers: { Authorization: `Bearer ${token}` } }) });
    return response.ok ? ((await response.json()) as { ice_servers: RTCIceServer[] }).ice_servers : [];
  };
  known = { until: Date.now() + 60_000, servers: ask().catch(() => []) };
  return known.servers;
}
