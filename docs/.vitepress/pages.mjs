// Pages of the site: which files of the repository they are, their addresses, and the sidebar.
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';

export const REPOSITORY = resolve(import.meta.dirname, '../..');

/** Pages outside of `docs/`, and pages with an address that differs from their path. */
const ADDRESSES = {
  'README.md': 'overview.md',
  'ARCHITECTURE.md': 'explanation/architecture.md',
  'CHANGELOG.md': 'changelog.md',
  'CONTRIBUTING.md': 'contributing.md',
  'SECURITY.md': 'vulnerabilities.md',
  'conformance/README.md': 'explanation/conformance.md',
  'deploy/README.md': 'how-to/deploy.md',
  'docs/lab/README.md': 'lab/index.md',
  'fuzz/README.md': 'explanation/fuzzing.md',
  'sdk/typescript/README.md': 'reference/typescript.md',
  'web/README.md': 'pages.md',
};

/** Folders of `docs/` that contain pages. */
const FOLDERS = ['tutorials', 'how-to', 'reference', 'explanation', 'lab', 'adr'];

/** Returns every page: its path in the repository, and the path of its address (`reference/protocol.md`). */
export function pages() {
  const found = { 'docs/index.md': 'index.md', 'docs/theses.md': 'theses.md' };
  for (const folder of FOLDERS)
    for (const name of readdirSync(join(REPOSITORY, 'docs', folder)).sort())
      if (name.endsWith('.md')) found[`docs/${folder}/${name}`] = `${folder}/${name}`;
  return { ...found, ...ADDRESSES };
}

/** Returns the address below `/docs` of a page: `lab/index.md` has the address `/lab/`. */
const address = (path) => `/${path.replace(/\.md$/, '').replace(/(^|\/)index$/, '$1')}`;

/**
 * Returns the address of a link in the page `from`; undefined for a link to a file that is no page, such as a source
 * file. Fails if the link leads nowhere.
 */
export function target(from, link, known = pages()) {
  const [path, anchor] = link.split('#');
  const file = relative(REPOSITORY, resolve(REPOSITORY, dirname(from), decodeURI(path))).replaceAll('\\', '/');
  if (known[file]) return `${address(known[file])}${anchor ? `#${anchor}` : ''}`;
  if (!existsSync(join(REPOSITORY, file))) throw new Error(`${from}: the link ${link} leads nowhere`);
  if (statSync(join(REPOSITORY, file)).isDirectory()) return folder(file, known);
}

/** Returns the address of a folder of pages: its section on the start page. */
function folder(path, known) {
  const sections = { 'docs/tutorials': 'tutorials', 'docs/how-to': 'how-to-guides', 'docs/reference': 'reference', 'docs/explanation': 'explanation', 'docs/adr': 'decisions' };
  if (sections[path]) return `/#${sections[path]}`;
  return known[`${path}/README.md`] && address(known[`${path}/README.md`]);
}

/** Returns the sidebar: the sections and links of the start page. Fails if a page is missing there. */
export function sidebar(known = pages()) {
  const groups = [];
  const missing = new Set(Object.keys(known).filter((page) => page !== 'docs/index.md'));
  for (const line of readFileSync(join(REPOSITORY, 'docs/index.md'), 'utf8').split('\n')) {
    const [, title] = /^## (.*)$/.exec(line) ?? [];
    if (title) groups.push({ text: title, collapsed: ['Lab', 'Decisions', 'Project'].includes(title), items: [] });
    const [, text, link] = /^- \[(.*?)\]\((.*?)\)/.exec(line) ?? [];
    if (!link) continue;
    groups.at(-1).items.push({ text, link: target('docs/index.md', link, known) });
    missing.delete(relative(REPOSITORY, resolve(REPOSITORY, 'docs', link)));
  }
  if (missing.size > 0) throw new Error(`docs/index.md does not list ${[...missing].join(', ')}`);
  return groups;
}

/** Returns the anchor of a heading, by the rules of GitHub, where these documents are read, too. */
export const anchor = (heading) => heading.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-');

/** Plugin of markdown-it: turns links between files into addresses of pages, and links to source files into text. */
export function links(md) {
  const known = pages();
  md.core.ruler.push('links_between_files', (state) => {
    const file = state.env.realPath ?? state.env.path;
    // Text outside of a page, such as its title, has no links.
    if (!file) return;
    const from = relative(REPOSITORY, file).replaceAll('\\', '/');
    for (const { children, type } of state.tokens) if (type === 'inline') resolveLinks(children, from, known);
    for (const token of state.tokens) if (token.type === 'html_block') token.content = images(token.content, from);
  });
}

function resolveLinks(tokens, from, known) {
  let dropped = 0;
  for (const token of tokens) {
    const link = token.type === 'link_open' ? token.attrGet('href') : undefined;
    if (link && !/^([a-z]+:|#|\/)/i.test(link)) {
      const address = target(from, link, known);
      if (address) token.attrSet('href', address);
      else Object.assign(token, { type: 'text', content: '', hidden: true, tag: '', nesting: 0, attrs: null }), dropped++;
    } else if (token.type === 'link_close' && dropped > 0) {
      Object.assign(token, { type: 'text', content: '', tag: '', nesting: 0 }), dropped--;
    } else if (token.type === 'html_inline') token.content = images(token.content, from);
  }
}

/** Makes the sources of images relative to their page, which is how the bundler finds them. */
const images = (html, from) => html.replace(/(<(?:img|source) [^>]*src(?:set)?=")(?![./]|[a-z]+:)/g, `$1${from.includes('/') ? '' : './'}`);
