// Starts CarCare without a network: its page, its town, its assets. Never in the way of data. Shows notifications.
const CACHE = 'carcare-1';
const SHELL = ['/carcare', '/town.json', '/manifest.webmanifest', '/icon.svg'];
const DATA = /^\/(v1|rest|websocket|healthz|readyz|metrics)(\/|$)/;

self.addEventListener('install', (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(SHELL)).then(() => self.skipWaiting()));
});

self.addEventListener('activate', (event) => {
  const old = caches.keys().then((names) => Promise.all(names.filter((name) => name !== CACHE).map((name) => caches.delete(name))));
  event.waitUntil(old.then(() => self.clients.claim()));
});

// The page names all assets it runs on, loaded before this worker was there or after; those of earlier versions go.
self.addEventListener('message', (event) => {
  if (event.data && 'speak' in event.data) event.waitUntil(learn(event.data.speak));
  if (!event.data?.keep) return;
  const keep = async () => {
    const cache = await caches.open(CACHE);
    for (const { url } of await cache.keys()) if (url.includes('/assets/') && !event.data.keep.includes(url)) await cache.delete(url);
    for (const url of event.data.keep) if (!(await cache.match(url))) await cache.add(url);
  };
  event.waitUntil(keep());
});

self.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== 'GET' || url.origin !== location.origin || DATA.test(url.pathname)) return;
  if (request.headers.get('accept')?.includes('text/event-stream')) return;
  if (url.pathname.startsWith('/assets/')) event.respondWith(kept(request));
  else if (SHELL.includes(url.pathname)) event.respondWith(fresh(request, url.pathname));
});

// Assets carry a hash in their name: what was kept is right for ever.
async function kept(request) {
  const hit = await caches.match(request);
  if (hit) return hit;
  const answer = await fetch(request);
  if (answer.ok) await (await caches.open(CACHE)).put(request, answer.clone());
  return answer;
}

// The newest when the server answers, else what was kept. `path` leaves out the query (?car=1).
async function fresh(request, path) {
  try {
    const answer = await fetch(request);
    if (answer.ok) await (await caches.open(CACHE)).put(path, answer.clone());
    return answer;
  } catch {
    return (await caches.match(path)) ?? Response.error();
  }
}

const WORDS = '/carcare-words';

// null: the words of the server.
async function learn(words) {
  const cache = await caches.open(CACHE);
  await (words ? cache.put(WORDS, Response.json(words)) : cache.delete(WORDS));
}

// Every push is shown: a browser withdraws the permission otherwise.
self.addEventListener('push', (event) => event.waitUntil(notify(event.data)));

async function notify(data) {
  let message = {};
  try {
    message = data.json() ?? {};
  } catch {}
  const words = await caches.match(WORDS).then((kept) => kept?.json()).catch(() => undefined);
  const { url, carId, tag } = message;
  const { title, body } = spoken(message, words);
  await self.registration.showNotification(title, { body, icon: '/icon-192.png', data: { url, carId }, ...(tag && { tag, renotify: true }) });
}

function spoken({ title = 'CarCare', body = '', type, carId, code, geofence, advice }, words) {
  const event = words?.events?.[type];
  if (!event) return { title, body };
  const known = code && words.codes?.[code.slice(0, 5)];
  const text = geofence ? '' : known ? `${known}. ${words.advice?.[advice] ?? ''}` : code ? body : (words.advice?.[type] ?? body);
  return { title: `${words.car} ${carId}: ${[event, code ?? geofence].filter(Boolean).join(' ')}`, body: text.trim() };
}

self.addEventListener('notificationclick', (event) => {
  event.notification.close();
  event.waitUntil(openCar(event.notification.data ?? {}));
});

async function openCar({ url = '/carcare', carId }) {
  const pages = await self.clients.matchAll({ type: 'window', includeUncontrolled: true });
  const page = pages.find((one) => new URL(one.url).pathname === '/carcare');
  if (page) {
    if (carId !== undefined) page.postMessage({ select: carId });
    return page.focus();
  }
  const target = new URL(url, location.origin);
  return self.clients.openWindow(target.origin === location.origin ? target : '/carcare');
}
