/**
 * Notifications of this browser: Web Push subscriptions with one subject per car, `car-{id}`. The chosen cars are kept
 * in this browser. Source: docs/how-to/notify-closed-pages.md, docs/reference/protocol.md, "Notifications".
 */
import { Refused, request } from '../../../lib/request';
import type { CarId } from '../telemetry';

/** Why notifications cannot be switched on; `off` and `on` if they can. */
export type NotifyState = 'unsupported' | 'insecure' | 'no-key' | 'blocked' | 'off' | 'on';

/** The browser's push service, or the person, refused. */
export class NotSubscribed extends Error {
  constructor(
    readonly by: 'person' | 'browser' | 'service',
    message = '',
  ) {
    super(message);
  }
}

const KEY = 'carcare.notify';
const WORKER = '/sw-carcare.js';
const NOT_IMPLEMENTED = 501;

const subjectOf = (car: CarId) => `/v1/push/${encodeURIComponent(`car-${car}`)}`;

/** Returns the cars that this browser is notified about. */
export function chosenCars(): CarId[] {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? '[]') as unknown;
    return Array.isArray(stored) ? stored.filter((id): id is CarId => typeof id === 'string' || Number.isInteger(id)) : [];
  } catch {
    return [];
  }
}

const keep = (cars: readonly CarId[]): void => localStorage.setItem(KEY, JSON.stringify(cars));

/** Encodes bytes as base64url, the form of the server's key. */
const base64url = (bytes: ArrayBuffer): string =>
  btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');

const isSupported = (): boolean => 'serviceWorker' in navigator && 'PushManager' in window && 'Notification' in window;

async function registration(): Promise<ServiceWorkerRegistration> {
  await navigator.serviceWorker.register(WORKER, { scope: '/carcare' });
  return navigator.serviceWorker.ready;
}

/** Returns the public key of the server; undefined if the server has none. Throws `Refused`. */
async function serverKey(token: string | undefined): Promise<string | undefined> {
  try {
    return (await request<{ key: string }>('/v1/push', token)).key;
  } catch (error) {
    if (error instanceof Refused && error.status === NOT_IMPLEMENTED) return undefined;
    throw error;
  }
}

/** Returns the state of this browser and the server. Asks the person nothing. Throws `Refused`. */
export async function look(token: string | undefined): Promise<NotifyState> {
  if (!window.isSecureContext) return 'insecure';
  if (!isSupported()) return 'unsupported';
  const key = await serverKey(token);
  if (key === undefined) return 'no-key';
  if (Notification.permission === 'denied') return 'blocked';
  return chosenCars().length > 0 && Notification.permission === 'granted' ? 'on' : 'off';
}

/**
 * Stores the subscription of every chosen car again: the push service can have replaced the subscription, and the
 * server can have lost it. Throws `NotSubscribed`, `Refused`.
 */
export async function renew(token: string | undefined): Promise<void> {
  const key = await serverKey(token);
  if (key === undefined) return;
  const subscription = await subscribe(key);
  for (const car of chosenCars()) await store(car, subscription, token);
}

async function subscribe(key: string): Promise<PushSubscription> {
  const { pushManager } = await registration();
  const known = await pushManager.getSubscription();
  const knownKey = known?.options.applicationServerKey;
  if (known && knownKey && base64url(knownKey) === key) return known;
  // A subscription belongs to one key, and the server has another one now.
  await known?.unsubscribe();
  try {
    return await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  } catch (error) {
    throw new NotSubscribed('service', error instanceof Error ? error.message : String(error));
  }
}

const send = (method: string, body: unknown): RequestInit => ({ method, body: JSON.stringify(body) });

async function store(car: CarId, subscription: PushSubscription, token: string | undefined): Promise<void> {
  await empty(`${subjectOf(car)}/subscriptions`, token, send('POST', subscription));
}

/** Sends a request whose answer has no body. Throws `Refused`. */
async function empty(path: string, token: string | undefined, init: RequestInit): Promise<void> {
  const response = await fetch(path, { ...init, ...(token !== undefined && { headers: { Authorization: `Bearer ${token}` } }) });
  if (response.ok) return;
  const { detail } = (await response.json().catch(() => ({}))) as { detail?: string };
  throw new Refused(response.status, detail ?? `${path} returned status ${response.status}`);
}

/**
 * Switches the notifications about a car on. Call this in the handler of a click: browsers ask for the permission only
 * then. Throws `NotSubscribed`, `Refused`.
 */
export async function notifyAbout(car: CarId, token: string | undefined): Promise<void> {
  const permission = await Notification.requestPermission();
  if (permission !== 'granted') throw new NotSubscribed(permission === 'denied' ? 'browser' : 'person');
  const key = await serverKey(token);
  if (key === undefined) throw new Refused(NOT_IMPLEMENTED, 'this server has no key for Web Push');
  await store(car, await subscribe(key), token);
  keep([...chosenCars().filter((each) => each !== car), car]);
}

/** Switches the notifications about a car off. The last one ends the subscription of the browser. Throws `Refused`. */
export async function stopNotifying(car: CarId, token: string | undefined): Promise<void> {
  const { pushManager } = await registration();
  const subscription = await pushManager.getSubscription();
  const rest = chosenCars().filter((each) => each !== car);
  if (subscription) await empty(`${subjectOf(car)}/subscriptions`, token, send('DELETE', { endpoint: subscription.endpoint }));
  keep(rest);
  if (rest.length === 0) await subscription?.unsubscribe();
}

/**
 * Sends a test notification through the server and the push service. Returns the number of browsers. Throws
 * `Refused`.
 */
export async function testNotification(car: CarId, title: string, body: string, token: string | undefined): Promise<number> {
  const message = { title, body, url: `/carcare?car=${encodeURIComponent(car)}`, tag: `${car}/test`, carId: String(car) };
  return (await request<{ pushes: number }>(`${subjectOf(car)}?ttl=5m&urgency=high`, token, send('POST', message))).pushes;
}

/** Gives the service worker the words of the chosen language; `null` for those of the server. */
export async function teach(words: unknown): Promise<void> {
  if (!('serviceWorker' in navigator)) return;
  const known = await navigator.serviceWorker.getRegistration('/carcare');
  known?.active?.postMessage({ speak: words });
}
