/**
 * Signaling between peers and a gateway in a page: the channels and their messages (docs/reference/gateway.md, "In a
 * browser"). Uses no DOM.
 */
import { bytesOf } from './bundle';
import { Refused, type Ticket } from './forwarder';

/** Maximum size of the SDP offer alone. */
export const OFFER_BYTES_MAX = 64 * 1024;
const URGENT_BYTES_MAX = 256;

/** A device publishes an offer on `offers`, and reads `answers` for its `id`. */
export interface Offer extends Ticket {
  /** A random id that is unique and cannot be guessed. */
  readonly id: string;
  readonly offer: string;
}

export type Answer = { readonly answer: string } | { readonly error: Refused['code']; readonly detail: string };

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
export const freshId = (): string => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

/** Returns the id to which an answer can be sent; `undefined` if the id is missing or not valid. */
export function idOf(data: unknown): string | undefined {
  const { id } = (data ?? {}) as Partial<Offer>;
  return typeof id === 'string' && /^[\w-]{8,64}$/.test(id) ? id : undefined;
}

/** Validates an offer. Throws `Refused`. The forwarder checks the names. */
export function readOffer(data: unknown): Offer {
  const wrong = (detail: string): never => {
    throw new Refused('bad_request', detail);
  };
  const { name, to, urgent, offer } = (data ?? {}) as Record<string, unknown>;
  const id = idOf(data) ?? wrong('an offer has an id: 8 to 64 letters, digits, - or _');
  if (typeof name !== 'string' || typeof offer !== 'string') return wrong('an offer says who comes: {"id", "name", "to"?, "urgent"?, "offer"}');
  if (to != null && typeof to !== 'string') wrong('`to` is a name');
  if (urgent != null && (typeof urgent !== 'string' || bytesOf(urgent) > URGENT_BYTES_MAX)) wrong(`\`urgent\` is text of ${URGENT_BYTES_MAX} bytes at most`);
  if (bytesOf(offer) > OFFER_BYTES_MAX) wrong(`an offer has at most ${OFFER_BYTES_MAX} bytes`);
  // An offer with video or audio would require decoding, so it is refused.
  if (!/^m=application /m.test(offer) || /^m=(?!application )/m.test(offer)) wrong('an offer is for data channels, and nothing else');
  return { id, name, offer, ...(typeof to === 'string' && { to }), ...(typeof urgent === 'string' && { urgent }) };
}

export function readAnswer(data: unknown): Answer | undefined {
  const { answer, error, detail } = (data ?? {}) as Record<string, unknown>;
  if (typeof answer === 'string') return { answer };
  return typeof error === 'string' ? { error: error as Refused['code'], detail: String(detail ?? '') } : undefined;
}
