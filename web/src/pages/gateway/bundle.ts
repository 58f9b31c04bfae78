/**
 * Bundles several messages into one: a JSON array with an object for each message (docs/reference/gateway.md,
 * "Bundles"). Uses no DOM.
 */

/** Text, or bytes that are not UTF-8. */
export type Data = string | Uint8Array<ArrayBuffer>;

/** A message in a bundle. */
export interface Part {
  /** The sender in a gathered bundle; the receiver in a bundle that is split. */
  readonly peer: string;
  readonly data: Data;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export const bytesOf = (data: Data): number => (typeof data === 'string' ? encoder.encode(data).length : data.length);

/** Converts bytes to text if they are UTF-8. */
export function asText(data: Data | ArrayBuffer): Data {
  if (typeof data === 'string') return data;
  const bytes = data instanceof ArrayBuffer ? new Uint8Array(data) : data;
  try {
    return decoder.decode(bytes);
  } catch {
    return bytes;
  }
}

/** Returns whether a message begins with this text, byte for byte. */
export const startsWith = (data: Data, text: string): boolean => (typeof data === 'string' ? data.startsWith(text) : encoder.encode(text).every((byte, i) => data[i] === byte));

/** Encodes one message as an item of a bundle. */
export const item = (peer: string, data: Data): string => JSON.stringify(typeof data === 'string' ? { peer, data } : { peer, data: btoa(String.fromCharCode(...data)), encoding: 'base64' });

/** A bundle under construction. */
export class Bundle {
  #items: string[] = [];
  /** Bytes of the text, without the closing bracket. */
  bytes = 0;
  /** Number of messages. */
  count = 0;
  /** Number of messages that the bundle reports as lost. */
  lost = 0;

  push(peer: string, data: Data): void {
    this.#add(item(peer, data));
    this.count++;
  }

  /** Reports that `lost` messages before the next ones were dropped. */
  pushLost(lost: number): void {
    this.#add(JSON.stringify({ lost }));
    this.lost += lost;
  }

  #add(text: string): void {
    this.#items.push(text);
    this.bytes += bytesOf(text) + 1;
  }

  /** Returns the text of the bundle and clears it. */
  take(): string {
    const text = `[${this.#items.join(',')}]`;
    this.#items = [];
    this.bytes = this.count = this.lost = 0;
    return text;
  }
}

/**
 * Returns the messages of a bundle in order, and the number of lost messages that it reports. Returns `undefined` if
 * the data is not a bundle.
 */
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

/** Returns whether a string is valid text. A lone surrogate is not. */
const isText = (text: string): boolean => !/\p{Surrogate}/u.test(text);

/** Decodes strict base64. `atob` also accepts missing padding and white space. */
function unbase64(text: string): Data | undefined {
  try {
    const bytes = atob(text);
    return btoa(bytes) === text ? asText(Uint8Array.from(bytes, (letter) => letter.charCodeAt(0))) : undefined;
  } catch {
    return undefined;
  }
}
