import { readFileSync } from 'node:fs';
import { serve, simulate } from './server.ts';

/** One server and one fleet for all tests; a test that needs a server of its own starts it itself. */
export default async function setup(): Promise<() => Promise<void>> {
  const server = await serve(undefined, ['--set', 'rooms.mixers_max=4']);
  await samePages(server.url).catch(async (error: unknown) => {
    await server.stop();
    throw error;
  });
  const fleet = simulate(server.url);
  process.env.MILLRACE_URL = server.url;
  return async () => {
    await fleet.stop();
    await server.stop();
  };
}

/** The pages are embedded when the server is built: an older binary would be tested with older pages. */
async function samePages(url: string): Promise<void> {
  const manifest = JSON.parse(readFileSync(new URL('../pack/manifest.json', import.meta.url), 'utf8')) as { path: string; etag: string }[];
  for (const { path, etag } of manifest) {
    const served = await fetch(url + path);
    await served.body?.cancel();
    if (served.headers.get('etag') !== etag)
      throw new Error(`The server has other pages than web/pack (${path}): npm run build, then cargo build -p millrace-cli.`);
  }
}
