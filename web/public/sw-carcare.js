// Starts CarCare without a network: its page, its town, its assets. Never in the way of data.
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
