// Packs dist/ and the documentation (docs/.vitepress/dist, below /docs) for the server to embed: pack/<hash>.br
// (brotli 11) and pack/manifest.json, an array of
//   { path, mime, etag, len, file, immutable }
// path: what a browser asks for (`/`, `/carcare`, `/assets/..`); etag: quoted, of the content before compression;
// len: bytes before compression; file: name inside pack/; immutable: the path carries a hash, keep it for a year.
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { extname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { brotliCompress, constants } from 'node:zlib';
import { scriptsInFiles } from './scripts-in-files.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const documentation = join(root, '../docs/.vitepress/dist');
const pack = join(root, 'pack');
const brotli = promisify(brotliCompress);

const MIME = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.json': 'application/json',
  '.webmanifest': 'application/manifest+json',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
};

/** Pages go by their names without `.html`, and `index.html` by the name of its folder. */
const pathOf = (file) => `/${file.split(sep).join('/').replace(/\.html$/, '').replace(/(^|\/)index$/, '$1')}`;

/** Returns the files of a folder by their paths. */
async function contents(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const names = entries.filter((e) => e.isFile()).map((e) => relative(folder, join(e.parentPath, e.name)));
  return Promise.all(names.sort().map(async (name) => ({ name, path: pathOf(name), content: await readFile(join(folder, name)) })));
}

/** Returns the files of the documentation. The server answers unknown addresses below `/docs` with its own page. */
async function docs() {
  if (!existsSync(documentation)) {
    console.log('packed without the documentation: run `make docs` first');
    return [];
  }
  const files = (await contents(documentation)).filter(({ name }) => !['404.html', 'hashmap.json', '.built'].includes(name));
  return scriptsInFiles(files.map((file) => ({ ...file, path: `/docs${file.path}` })), '/docs/assets');
}

await rm(pack, { recursive: true, force: true });
await mkdir(pack);
const manifest = [];
let raw = 0;
let packed = 0;
for (const { name, path, content } of [...(await contents(join(root, 'dist'))), ...(await docs())]) {
  const mime = MIME[extname(name)];
  if (!mime) throw new Error(`scripts/pack.mjs knows no content type for ${name}`);
  const hash = createHash('sha256').update(content).digest('hex').slice(0, 32);
  const body = await brotli(content, {
    params: {
      [constants.BROTLI_PARAM_QUALITY]: 11,
      [constants.BROTLI_PARAM_LGWIN]: 22,
      [constants.BROTLI_PARAM_SIZE_HINT]: content.length,
    },
  });
  await writeFile(join(pack, `${hash}.br`), body);
  manifest.push({ path, mime, etag: `"${hash}"`, len: content.length, file: `${hash}.br`, immutable: /^(?:\/docs)?\/assets\//.test(path) });
  raw += content.length;
  packed += body.length;
}
await writeFile(join(pack, 'manifest.json'), `${JSON.stringify(manifest, null, 1)}\n`);
console.log(`packed ${manifest.length} files: ${(raw / 1000).toFixed(0)} kB to ${(packed / 1000).toFixed(0)} kB`);
