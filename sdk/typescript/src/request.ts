// The server's URL, and HTTP requests to the server.
import { MillraceError, unreachable } from './errors.js';

/**
 * Returns the server's URL without a slash at the end. In a page, `url` may be a path on the page's own origin. Throws
 * `invalid`.
 */
export function baseOf(url: string | URL): string {
  const text = String(url);
  try {
    // `new URL` would parse `localhost:8080` as a scheme, and `127.0.0.1:8080` as a file relative to the page.
    if (!/^((http|ws)s?:\/\/|[./]|$)/i.test(text)) throw 0;
    const { href, username } = new URL(text.replace(/^ws/i, 'http'), globalThis.location?.href);
    if (username) throw 0;
    return href.replace(/\/*([?#].*)?$/, '');
  } catch {
    throw new MillraceError('invalid', `"${text}" is no server URL; expected http://127.0.0.1:8080 or https://example.com`);
  }
}

/** Headers of a request. An undefined header is not sent. */
export type SentHeaders = Record<string, string | number | undefined>;

/**
 * Sends a request with a token. Throws `invalid` for a header that HTTP cannot carry, and `network` if no response
 * arrives.
 */
export async function send(fetcher: typeof fetch | undefined, url: string | URL, token: string | undefined, { headers, ...init }: Omit<RequestInit, 'headers'> & { headers: SentHeaders }): Promise<Response> {
  const sent = new Headers();
  for (const [name, value] of Object.entries({ ...headers, Authorization: token === undefined ? token : `Bearer ${token}` })) if (value !== undefined) sent.set(name, value as string);
  try {
    return await (fetcher ?? fetch)(url, { ...init, headers: sent });
  } catch (thrown) {
    throw unreachable(thrown, url);
  }
}
