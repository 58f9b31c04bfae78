import { fileURLToPath } from 'node:url';
import { defineConfig, mergeConfig } from 'vite';
import base from './vite.config.ts';

// A build of its own: it contains only those parts of Svelte and of the client that the operator pages use. Together
// with the other pages, the first load of `/ui` is 10 % larger.
const { input: _, ...options } = base.build?.rolldownOptions ?? {};
export default defineConfig(
  mergeConfig(
    { ...base, build: { ...base.build, rolldownOptions: options } },
    { publicDir: false, build: { emptyOutDir: false, rolldownOptions: { input: { ui: fileURLToPath(new URL('./ui.html', import.meta.url)) } } } },
  ),
);
