import { mount } from 'svelte';
import '../../lib/base.css';
import CarCare from './CarCare.svelte';

mount(CarCare, { target: document.getElementById('app')! });

// Only here, never on the other pages: a worker in the path of a stream breaks it.
if (import.meta.env.PROD && 'serviceWorker' in navigator) {
  void navigator.serviceWorker
    .register('/sw-carcare.js', { scope: '/carcare' })
    .then(() => navigator.serviceWorker.ready)
    .then(({ active }) => {
      // What this page has loaded before the worker was there, so that the next start works without a network.
      const loaded = performance.getEntriesByType('resource').map((entry) => entry.name);
      active?.postMessage({ keep: loaded.filter((url) => url.startsWith(`${location.origin}/assets/`)) });
    })
    .catch((error: unknown) => console.info('CarCare stays without offline start:', error));
}
