import { fileURLToPath } from 'node:url';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

const page = (name: string) => fileURLToPath(new URL(`./${name}.html`, import.meta.url));

export default defineConfig({
  plugins: [svelte()],
  worker: { format: 'es' },
  build: {
    target: 'es2022',
    // One HTML file per screen; a new screen is a new line here. vite.ui.config.ts builds the operator pages.
    rolldownOptions: {
      // One chunk each, although parts that are loaded later use some of their modules: small chunks compress badly.
      output: {
        codeSplitting: {
          includeDependenciesRecursively: false,
          groups: [
            { name: 'client', test: /typescript\/dist\/(?!room|share|kit|file|sha256|latency|roster|trace|react|svelte|vue)/ },
            { name: 'carcare', test: /src\/pages\/carcare\/(?!panels\/|replay\/|map\/|words\.de|(Alerts|Geofences|Preferences|DrivingPanel|TransportMenu)\.svelte)/ },
          ],
        },
      },
      input: { index: page('index'), carcare: page('carcare'), lab: page('lab'), rooms: page('rooms'), gateway: page('gateway'), link: page('link'), ball: page('ball'), arm: page('arm'), battery: page('battery'), ticker: page('ticker'), race: page('race'), chat: page('chat'), '404': page('404') },
    },
    modulePreload: { polyfill: false },
    // MapLibre is 1.1 MB before compression and loads only where a map is.
    chunkSizeWarningLimit: 1200,
    reportCompressedSize: false,
  },
  // `npx vite` beside a running server: pages from here, data from there.
  server: {
    proxy: Object.fromEntries(
      ['/v1', '/rest'].map((path) => [path, { target: process.env.MILLRACE_URL ?? 'http://127.0.0.1:8080', ws: true }]),
    ),
  },
});
