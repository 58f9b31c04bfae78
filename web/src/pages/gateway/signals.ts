/**
 * Signaling between peers and a gateway in a page: the channels and their messages (docs/reference/gateway.md, "In a
 * browser"). Uses no DOM.
 */
import { bytesOf } from './bundle';
import { JoinRefused, type JoinRequest } from './forwarder';

/** Maximum size of the SDP offer alone. */
export const OFFER_BYTES_MAX = 64 * 1024;
const URGENT_BYTES_MAX = 256;

/** A device publishes an offer on `offers`, and reads `answers` for its `id`. */
export interface Offer extends JoinRequest {
  /** A random id that is unique and cannot be guessed. */
  readonly id: string;
  readonly offer: string;
}

export type Answer = { readonly answer: string } | { readonly error: JoinRefused['code']; readonly detail: string };

export const offers = (gateway: string): string => `gateways/${gateway}/offers`;
export const answers = (gateway: string, id: string): string => `gateways/${gateway}/answers/${id}`;

/**
 * Returns the channel on which a gateway lists missing receivers. It is one of the answer channels, so that a device's
 * token needs no other permission. No `id` equals this name.
 */
export const missingAt = (gateway: string): string => answers(gateway, 'missing-receivers');

/** Returns the number of messages for each receiver that has not joined. */
export function readMissing(data: unknown): ReadonlyMap<string, number> {
  const { missing } = (data ?? {}) as { missing?: unknown };
  return new Map(Object.entries(missing ?? {}).filter((entry): entry is [string, number] => typeof entry[1] === 'number'));
}

/** Returns a random id of 128 bits. */
export const randomId = (): string => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

/** Returns the id to which an answer can be sent; `undefined` if the id is missing or not valid. */
export function idOf(data: unknown): string | undefined {
  const { id } = (data ?? {}) as Partial<Offer>;
  return typeof id === 'string' && /^[\w-]{8,64}$/.test(id) ? id : undefined;
}

/** Validates an offer. Throws `JoinRefused`. The forwarder checks the names. */
export function readOffer(data: unknown): Offer {
  const wrong = (detail: string): never => {
    throw new JoinRefused('bad_request', detail);
  };
  const { name, to, urgent, offer } = (data ?? {}) as Record<string, unknown>;
  const id = idOf(data) ?? wrong('`id`: expected 8 to 64 letters, digits, - or _');
  if (typeof name !== 'string' || typeof offer !== 'string') return wrong('expected {"id", "name", "to"?, "urgent"?, "offer"}');
  if (to != null && typeof to !== 'string') wrong('`to`: expected a name');
  if (urgent != null && (typeof urgent !== 'string' || bytesOf(urgent) > URGENT_BYTES_MAX)) wrong(`\`urgent\`: expected text of at most ${URGENT_BYTES_MAX} bytes`);
  if (bytesOf(offer) > OFFER_BYTES_MAX) wrong(`\`offer\`: expected at most ${OFFER_BYTES_MAX} bytes`);
  // An offer with video or audio would require decoding, so it is refused.
  if (!/^m=application /m.test(offer) || /^m=(?!application )/m.test(offer)) wrong('`offer`: expected data channels only, without video or audio');
  return { id, name, offer, ...(typeof to === 'string' && { to }), ...(typeof urgent === 'string' && { urgent }) };
}

export function readAnswer(data: unknown): Answer | undefined {
  const { answer, error, detail } = (data ?? {}) as Record<string, unknown>;
  if (typeof answer === 'string') return { answer };
  return typeof error === 'string' ? { error: error as JoinRefused['code'], detail: String(detail ?? '') } : undefined;
}
