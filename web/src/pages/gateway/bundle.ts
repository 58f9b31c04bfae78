/** Many messages as one: a JSON array, an object for each (docs/gateway.md, "Bundles"). No document in here. */

/** Text, or bytes that are none. */
export type Data = string | Uint8Array<ArrayBuffer>;

/** A message in a bundle. */
export interface Part {
  /** Whom it is from, in a bundle that was gathered; whom it is for, in one that is to be split. */
  readonly peer: string;
  readonly data: Data;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export const bytesOf = (data: Data): number => (typeof data === 'string' ? encoder.encode(data).length : data.length);

/** Whatever is UTF-8 is text. */
export function asText(data: Data | ArrayBuffer): Data {
  if (typeof data === 'string') return data;
  const bytes = data instanceof ArrayBuffer ? new Uint8Array(data) : data;
  try {
    return decoder.decode(bytes);
  } catch {
    return bytes;
  }
}

/** Whether a message begins with this text, byte for byte. */
export const startsWith = (data: Data, text: string): boolean => (typeof data === 'string' ? data.startsWith(text) : encoder.encode(text).every((byte, i) => data[i] === byte));

/** One message as it stands in a bundle. */
export const item = (peer: string, data: Data): string => JSON.stringify(typeof data === 'string' ? { peer, data } : { peer, data: btoa(String.fromCharCode(...data)), encoding: 'base64' });

/** A bundle that grows. */
export class Bundle {
  #items: string[] = [];
  /** Of its text, without the last bracket. */
  bytes = 0;
  /** Messages in it. */
  count = 0;
  /** Messages that it says were lost. */
  lost = 0;

  push(peer: string, data: Data): void {
    this.#add(item(peer, data));
    this.count++;
  }

  /** Says that so many messages before these could not be kept. */
  pushLost(lost: number): void {
    this.#add(JSON.stringify({ lost }));
    this.lost += lost;
  }

  #add(text: string): void {
    this.#items.push(text);
    this.bytes += bytesOf(text) + 1;
  }

  /** Its text; it is empty afterwards. */
  take(): string {
    const text = `[${this.#items.join(',')}]`;
    this.#items = [];
    this.bytes = this.count = this.lost = 0;
    return text;
  }
}

/** The messages of a bundle, in their order, and how many it says were lost. `undefined`: it is none. */
export function read(data: Data): { readonly parts: readonly Part[]; readonly lost: number } | undefined {
  let items: unknown;
  try {
    items = typeof data === 'string' ? JSON.parse(data) : undefined;
  } catch {
    return undefined;
  }
  if (!Array.isArray(items)) return undefined;
  const parts: Part[] = [];
  let sum = 0;
  for (const one of items as unknown[]) {
    if (typeof one !== 'object' || one === null) return undefined;
    const { peer, data, encoding, lost } = one as Record<string, unknown>;
    if (typeof peer === 'string' && typeof data === 'string') {
      const message = encoding == null ? (isText(data) ? data : undefined) : encoding === 'base64' ? unbase64(data) : undefined;
      if (message === undefined) return undefined;
      parts.push({ peer, data: message });
    } else if (peer == null && data == null && encoding == null && Number.isSafeInteger(lost) && (lost as number) >= 0) sum += lost as number;
    else return undefined;
  }
  return { parts, lost: sum };
}

/** Half of a pair that stands alone is no text. */
const isText = (text: string): boolean => !/\p{Surrogate}/u.test(text);

/** By the book alone: `atob` forgives more. */
function unbase64(text: string): Data | undefined {
  try {
    const bytes = atob(text);
    return btoa(bytes) === text ? asText(Uint8Array.from(bytes, (letter) => letter.charCodeAt(0))) : undefined;
  } catch {
    return undefined;
  }
}
