/** The connection of one wearer to all others: a room of the given topology, or a channel of the server. */
import { millrace, type MillraceError } from '@millrace/client';
import { joinRoom, neighbours, type Room } from '@millrace/client/room';
import { fetchRelays } from '../gateway/connection';
import type { TopologyName } from './topology';

/** A movement. Other wearers vibrate when they receive it. */
export interface Movement {
  readonly from: string;
  readonly number: number;
  /** Time of the movement, ms since 1970 by the mover's clock. */
  readonly atMs: number;
}

export interface LinkOptions {
  readonly topology: TopologyName;
  /** Name of the group of wearers. */
  readonly group: string;
  readonly wearer: string;
  readonly token: string | undefined;
  readonly receive: (movement: Movement) => void;
  readonly ended: (cause: MillraceError | undefined) => void;
}

export interface Link {
  /** Connections to other wearers that are open, and that the topology needs. A channel counts as one. */
  connections(): { readonly open: number; readonly wanted: number };
  /** Types of the network paths in use: `host`, `relay`, .. */
  paths(): Promise<readonly string[]>;
  send(movement: Movement): void;
  close(): Promise<void>;
}

const isMovement = (data: unknown): data is Movement => {
  const { from, number, atMs } = Object(data) as Partial<Movement>;
  return typeof from === 'string' && Number.isSafeInteger(number) && Number.isFinite(atMs);
};

/** Joins the group. Each wearer has a client of its own, as a device would. */
export function join(options: LinkOptions): Promise<Link> {
  return options.topology === 'server' ? joinChannel(options) : joinByRoom(options, options.topology);
}

async function joinChannel({ group, token, wearer, receive, ended }: LinkOptions): Promise<Link> {
  const client = millrace(location.origin, token ? { token } : {});
  const channel = `arm/${group}/movements`;
  const subscription = client.subscribe(channel);
  subscription.on(({ data }) => {
    if (isMovement(data) && data.from !== wearer) receive(data);
  }, ended);
  await subscription.ready;
  return {
    connections: () => ({ open: client.state.name === 'open' ? 1 : 0, wanted: 1 }),
    paths: async () => ['server'],
    // A movement that cannot be published within a second is late, and therefore worthless.
    send: (movement) => void client.publish(channel, movement, { ttl: 1, signal: AbortSignal.timeout(1_000) }).catch(() => {}),
    close: () => client.close(),
  };
}

async function joinByRoom({ group, token, wearer, receive, ended }: LinkOptions, topology: 'mesh' | 'star' | 'relay'): Promise<Link> {
  const rtc = topology === 'relay' ? { rtc: { iceServers: await relays(token), iceTransportPolicy: 'relay' as const } } : {};
  const room: Room = await joinRoom(location.origin, `arm-${group}`, { name: wearer, topology, ...(token && { token }), ...rtc });
  const states = new Map<string, RTCPeerConnectionState>();
  room.on('link', ({ to, state }) => states.set(to, state));
  room.on('data', ({ data }) => isMovement(data) && receive(data));
  room.on('end', ended);
  return {
    connections: () => {
      const wanted = neighbours(room.state, room.id);
      return { open: wanted.filter((id) => states.get(id) === 'connected').length, wanted: wanted.length };
    },
    paths: async () => [...new Set((await room.quality()).links.map(({ kind }) => kind))],
    send: (movement) => room.send(movement),
    close: () => room.leave(),
  };
}

/** Returns the relay by UDP only: each address is one more allocation per connection, and the server limits these. */
async function relays(token: string | undefined): Promise<RTCIceServer[]> {
  const isUdp = (url: string): boolean => url.startsWith('turn:') && !url.endsWith('transport=tcp');
  const servers = (await fetchRelays(token)).map((server) => ({ ...server, urls: [server.urls].flat().filter(isUdp) }));
  const found = servers.filter(({ urls }) => urls.length > 0);
  if (found.length === 0) throw new Error('this server offers no TURN relay: set turn.listen');
  return found;
}
