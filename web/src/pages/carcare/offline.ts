/**
 * Lets CarCare start without a network. Registered by this page alone: a worker in the path of a stream breaks it.
 * Call it once everything the page needs has been loaded: what is named here is kept, what is not is dropped.
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
