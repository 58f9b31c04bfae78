// Names the group of tabs that may share a connection: those with the same server and the same user.

/** Claims that differ between two tokens of the same user. */
const CHANGING = new Set(['exp', 'iat', 'nbf', 'jti', 'auth_time']);

/**
 * Returns what a token allows, and to whom: its claims without the times and the id of the token. Two tabs whose tokens
 * have different permissions do not share a connection. A token that is no JWT, such as an API key, is its own
 * identity.
 */
export function identityOf(token: string | undefined): string {
  if (token === undefined) return 'anonymous';
  try {
    const claims = JSON.parse(atob(token.split('.')[1]!.replace(/-/g, '+').replace(/_/g, '/'))) as object;
    return `claims ${JSON.stringify(Object.entries(claims).filter(([name]) => !CHANGING.has(name)).sort())}`;
  } catch {
    return `token ${token}`;
  }
}

/** Returns the name of a group. It contains only a hash, because every script of the origin can list locks. */
export async function groupOf(version: number, base: string, identity: string): Promise<string> {
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(JSON.stringify([base, identity]))));
  return `millrace:${version}:${Array.from(hash.slice(0, 16), (byte) => byte.toString(16).padStart(2, '0')).join('')}`;
}
