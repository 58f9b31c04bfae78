// Packs dist/ for the server to embed: pack/<hash>.br (brotli 11) and pack/manifest.json, an array of
//   { path, mime, etag, len, file, immutable }
// path: what a browser asks for (`/`, `/carcare`, `/assets/..`); etag: quoted, of the content before compression;
// len: bytes before compression; file: name inside pack/; immutable: the path carries a hash, keep it for a year.
import { createHash } from 'node:crypto';
import { mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { extname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { brotliCompress, constants } from 'node:zlib';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');
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

/** Pages go by their names without `.html`. */
const pathOf = (file) => `/${file.split(sep).join('/').replace(/\.html$/, '')}`.replace(/^\/index$/, '/');

await rm(pack, { recursive: true, force: true });
await mkdir(pack);
const entries = await readdir(dist, { recursive: true, withFileTypes: true });
const files = entries.filter((e) => e.isFile()).map((e) => relative(dist, join(e.parentPath, e.name)));
const manifest = [];
let raw = 0;
let packed = 0;
for (const name of files.sort()) {
  const mime = MIME[extname(name)];
  if (!mime) throw new Error(`scripts/pack.mjs knows no content type for ${name}`);
  const content = await readFile(join(dist, name));
  const hash = createHash('sha256').update(content).digest('hex').slice(0, 32);
  const body = await brotli(content, {
    params: {
      [constants.BROTLI_PARAM_QUALITY]: 11,
      [constants.BROTLI_PARAM_LGWIN]: 22,
      [constants.BROTLI_PARAM_SIZE_HINT]: content.length,
    },
  });
  await writeFile(join(pack, `${hash}.br`), body);
  const path = pathOf(name);
  manifest.push({ path, mime, etag: `"${hash}"`, len: content.length, file: `${hash}.br`, immutable: path.startsWith('/assets/') });
  raw += content.length;
  packed += body.length;
}
await writeFile(join(pack, 'manifest.json'), `${JSON.stringify(manifest, null, 1)}\n`);
console.log(`packed ${manifest.length} files: ${(raw / 1000).toFixed(0)} kB to ${(packed / 1000).toFixed(0)} kB`);
