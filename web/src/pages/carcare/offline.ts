/**
 * Lets CarCare start without a network. Only this page registers the service worker, because a worker in the path of a
 * stream breaks the stream. Call this after the page has loaded all its assets: the worker keeps these and deletes all
 * others.
 */
export async function keepForOffline(): Promise<void> {
  if (!import.meta.env.PROD || !('serviceWorker' in navigator)) return;
  try {
    await navigator.serviceWorker.register('/sw-carcare.js', { scope: '/carcare' });
    const { active } = await navigator.serviceWorker.ready;
    const assets = performance.getEntriesByType('resource').map((entry) => entry.name);
    active?.postMessage({ keep: assets.filter((url) => url.startsWith(`${location.origin}/assets/`)) });
  } catch (error) {
    console.info('CarCare will not start offline:', error);
  }
}
