/** The user of this page: the subject of the token, or a browser with a random id and a chosen name. */
import { nameOf } from './post';
import { randomId } from './outbox';

const KEY = 'millrace-chat-me';

export interface Me {
  /** Subject, or the id of this browser. */
  readonly id: string;
  readonly name: string | undefined;
  /** True if a token names the user. The name is then the subject. */
  readonly verified: boolean;
}

/** Returns the subject of a JSON Web Token. The server has verified it; this page only displays it. */
export function subjectOf(token: string | undefined): string | undefined {
  try {
    const claims = token?.split('.')[1]?.replaceAll('-', '+').replaceAll('_', '/');
    if (!claims) return undefined;
    const { sub } = JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(claims), (char) => char.charCodeAt(0)))) as { sub?: unknown };
    return typeof sub === 'string' && sub ? sub : undefined;
  } catch {
    // Not a JSON Web Token, for example an API key.
    return undefined;
  }
}

export function loadMe(token: string | undefined): Me {
  const subject = subjectOf(token);
  if (subject) return { id: subject, name: subject, verified: true };
  let stored: { id?: unknown; name?: unknown } = {};
  try {
    stored = (JSON.parse(localStorage.getItem(KEY) ?? '{}') ?? {}) as typeof stored;
  } catch {
    // Replaced below.
  }
  const id = typeof stored.id === 'string' && /^[a-z0-9]{8,32}$/.test(stored.id) ? stored.id : randomId();
  return keepMe({ id, name: nameOf(stored.name), verified: false });
}

export function keepMe(me: Me): Me {
  try {
    if (!me.verified) localStorage.setItem(KEY, JSON.stringify({ id: me.id, name: me.name }));
  } catch {
    // Without storage, the name lasts until the page is closed.
  }
  return me;
}

/** Returns the key of a publication of this user. */
export const keyOf = ({ id, verified }: Me, unique: string): string => `${id}${verified ? '/' : '.'}${unique}`;
