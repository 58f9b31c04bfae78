// Builds the applications and serves each of them, as `vite build` and `vite preview` do.
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';
import { preview, type PreviewServer } from 'vite';

export interface Built {
  readonly name: string;
  readonly folder: 'react' | 'svelte' | 'vue';
  readonly mode: 'production' | 'react-18';
  /** Builds with the checks of a framework's developers: React then mounts every component of a StrictMode twice. */
  readonly nodeEnv: 'production' | 'development';
}

export const APPS: readonly Built[] = [
  { name: 'React 19', folder: 'react', mode: 'production', nodeEnv: 'production' },
  { name: 'React 19, development', folder: 'react', mode: 'production', nodeEnv: 'development' },
  { name: 'React 18, development', folder: 'react', mode: 'react-18', nodeEnv: 'development' },
  { name: 'Svelte 5', folder: 'svelte', mode: 'production', nodeEnv: 'production' },
  { name: 'Vue 3', folder: 'vue', mode: 'production', nodeEnv: 'production' },
];

export const rootOf = (folder: string): string => fileURLToPath(new URL(folder, import.meta.url));

function build({ folder, mode, nodeEnv }: Built, outDir: string): Promise<void> {
  const vite = fileURLToPath(new URL('../../node_modules/vite/bin/vite.js', import.meta.url));
  const child = spawn(process.execPath, [vite, 'build', '--mode', mode, '--outDir', outDir, '--emptyOutDir', '--logLevel', 'warn'], {
    cwd: rootOf(folder),
    env: { ...process.env, NODE_ENV: nodeEnv },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  for (const output of [child.stdout, child.stderr]) output.on('data', (piece) => (text += piece));
  return new Promise((resolve, reject) => {
    child.once('exit', (code) => (code === 0 && !text ? resolve() : reject(new Error(`vite build of ${folder} ended with ${code}: ${text}`))));
  });
}

/** Builds all applications. Returns the URL of each by its name, and a function that ends the servers. */
export async function buildAll(): Promise<{ readonly urls: ReadonlyMap<string, string>; stop(): Promise<void> }> {
  const parent = await mkdtemp(`${tmpdir()}/millrace-apps-`);
  const servers: PreviewServer[] = [];
  const urls = new Map<string, string>();
  await Promise.all(
    APPS.map(async (app, index) => {
      const outDir = `${parent}/${index}`;
      await build(app, outDir);
      const server = await preview({ root: rootOf(app.folder), configFile: false, logLevel: 'warn', build: { outDir }, preview: { host: '127.0.0.1', port: 0 } });
      servers.push(server);
      urls.set(app.name, server.resolvedUrls!.local[0]!);
    }),
  );
  return {
    urls,
    async stop() {
      await Promise.all(servers.map((server) => server.close()));
      await rm(parent, { recursive: true });
    },
  };
}
