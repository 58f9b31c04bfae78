import { fileURLToPath } from 'node:url';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

/** Nothing is loaded and nobody is asked: the page is all there is. */
const POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:";

/** Puts script and style into the page itself. */
const inline: Plugin = {
  name: 'inline',
  enforce: 'post',
  generateBundle(_, bundle) {
    const part = (path: string): string => {
      const name = path.replace(/^\//, '');
      const found = bundle[name];
      if (!found) throw new Error(`${name} is not part of the bundle`);
      delete bundle[name];
      return found.type === 'chunk' ? found.code.replaceAll('</script', '<\\/script') : String(found.source);
    };
    for (const page of Object.values(bundle)) {
      if (page.type !== 'asset' || !page.fileName.endsWith('.html')) continue;
      page.source = String(page.source)
        .replace('<meta charset="utf-8" />', (meta) => `${meta}\n    <meta http-equiv="Content-Security-Policy" content="${POLICY}" />`)
        .replace(/<script type="module"[^>]* src="([^"]+)"><\/script>/g, (_tag, path: string) => `<script type="module">${part(path)}</script>`)
        .replace(/<link rel="stylesheet"[^>]* href="([^"]+)">/g, (_tag, path: string) => `<style>${part(path)}</style>`);
    }
    const left = Object.keys(bundle).filter((name) => !name.endsWith('.html'));
    if (left.length > 0) throw new Error(`not inlined: ${left.join(', ')}`);
  },
};

/** Pages that are one file each: the lab puts a run into them, and people send them to one another. */
export default defineConfig({
  plugins: [svelte(), inline],
  publicDir: false,
  build: {
    outDir: 'single',
    target: 'es2022',
    rolldownOptions: { input: { report: fileURLToPath(new URL('./report.html', import.meta.url)) } },
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
  },
});
