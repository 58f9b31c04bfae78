// The documentation as a site below /docs. `make docs` builds it; the server embeds it (web/scripts/pack.mjs).
import { readFileSync } from 'node:fs';
import { defineConfig } from 'vitepress';
import { REPOSITORY, anchor, links, pages, sidebar } from './pages.mjs';

const known = pages();
/** An address with content, because VitePress would look for a path below /docs. */
const logo = `data:image/svg+xml,${encodeURIComponent(readFileSync(`${REPOSITORY}/web/public/icon.svg`, 'utf8').trim())}`;

/** Plugin of Vite: pages outside of `docs/` use the packages of `docs/`, too. */
const packages = {
  name: 'packages-of-docs',
  enforce: 'pre',
  resolveId(id, importer, options) {
    if (/^vue(\/|$)/.test(id) && importer?.endsWith('.md')) return this.resolve(id, `${REPOSITORY}/docs/index.md`, { ...options, skipSelf: true });
  },
};

/** Plugin of Vite: a section of the sidebar is one button. In the theme, its arrow is a second button inside. */
const sections = {
  name: 'sections-of-sidebar',
  enforce: 'pre',
  transform(code, id) {
    if (!id.endsWith('/VPSidebarItem.vue')) return;
    const arrow = /(class="caret")\s+role="button"\s+aria-label="toggle section"([^>]*?)\s+tabindex="0"/;
    if (!arrow.test(code)) throw new Error(`${id} has no arrow that is a button: remove this plugin`);
    return code.replace(arrow, '$1 aria-hidden="true"$2');
  },
};

/** Renders a page for the search index, in a third of the time: the index ignores the colors of code. */
function withoutColors(source, env, md) {
  const { highlight } = md.options;
  md.options.highlight = null;
  const html = md.render(source, env);
  md.options.highlight = highlight;
  return env.frontmatter?.search === false ? '' : html;
}

export default defineConfig({
  title: 'Millrace',
  description: 'Documentation of Millrace, a real-time delivery server',
  lang: 'en',
  base: '/docs/',
  // Pages are files of the whole repository, so that their links also work where files are read.
  srcDir: REPOSITORY,
  srcExclude: ['**/{target,node_modules,dist,test-results,lab-results}/**', '.*/**', 'crates/**'],
  rewrites: (file) => known[file],
  outDir: './.vitepress/dist',
  cacheDir: './.vitepress/cache',
  cleanUrls: true,
  // Scripts in files, not in the page: the server's policy for content forbids scripts in pages.
  metaChunk: true,
  head: [['link', { rel: 'icon', href: '/icon.svg', type: 'image/svg+xml' }]],
  markdown: {
    // The default colors have too little contrast.
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    languageAlias: { haproxy: 'nginx' },
    config: (md) => void md.use(links),
    anchor: { slugify: anchor },
    toc: { slugify: anchor },
    headers: { slugify: anchor },
  },
  // Links to a server of the reader.
  ignoreDeadLinks: 'localhostLinks',
  vite: {
    plugins: [packages, sections],
    resolve: { alias: [{ find: './VPHome.vue', replacement: `${REPOSITORY}/docs/.vitepress/theme/Home.mjs` }] },
    // Removing unused code takes a fifth of the time and saves 3 kB.
    build: { rollupOptions: { treeshake: false }, reportCompressedSize: false, chunkSizeWarningLimit: 1_000 },
  },
  themeConfig: {
    logo: { src: logo, alt: '' },
    nav: [{ text: 'Server', link: '/', target: '_self' }],
    sidebar: sidebar(known),
    outline: [2, 3],
    search: { provider: 'local', options: { _render: withoutColors } },
    docFooter: { prev: 'Previous', next: 'Next' },
  },
});
