/** Response of `GET /v1/info` (docs/reference/protocol.md, "Operating"). */
export interface Info {
  readonly version: string;
  readonly uptime_s: number;
  readonly listen: readonly string[];
  readonly udp?: string;
  readonly shards: number;
  readonly engine: string;
}

export async function fetchInfo(signal: AbortSignal): Promise<Info> {
  const response = await fetch('/v1/info', { signal, cache: 'no-store' });
  if (!response.ok) throw new Error(`/v1/info returned status ${response.status}`);
  return (await response.json()) as Info;
}

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\]|.+\.localhost)$/;
const ANY = /^(0\.0\.0\.0|\[::\])$/;

/** Returns why other devices cannot open this server, as a sentence; an empty string if they can. */
export function unreachable(listen: readonly string[], page: Location): string {
  if (reachable(listen, page).length > 0) return '';
  return isEverywhere(listen) ? 'This machine has no network address. Connect it to a network, then reload this page.' : 'This server accepts connections from this machine only.';
}

/**
 * Returns whether the server listens on all addresses. It then lists `localhost`, then the other addresses of its
 * machine.
 */
export const isEverywhere = (listen: readonly string[]): boolean => listen.some((address) => /^(localhost|0\.0\.0\.0|\[::\])$/.test(new URL(address).hostname));

/**
 * Returns the addresses that other machines can use. For a server that listens on all addresses, these include the host
 * of this page.
 */
export function reachable(listen: readonly string[], page: Location): string[] {
  const hosts = listen.map((address) => {
    const url = new URL(address);
    if (ANY.test(url.hostname)) url.hostname = page.hostname;
    return url;
  });
  const open = hosts.filter((url) => !LOOPBACK.test(url.hostname)).map((url) => url.origin);
  if (!LOOPBACK.test(page.hostname)) open.unshift(page.origin);
  return [...new Set(open)];
}
