import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FullConfig } from '@playwright/test';
import { film } from './camera.ts';
import { serve, simulate } from './server.ts';

/**
 * Starts one server and one simulated fleet for each worker; playwright.config.ts assigns them to the workers.
 * A test that needs a server of its own starts that server.
 */
export default async function setup({ workers }: FullConfig): Promise<() => Promise<void>> {
  film();
  const started: { stop(): Promise<void> }[] = [];
  /** The reports of the lab. */
  const lab = mkdtempSync(join(tmpdir(), 'millrace-lab-'));
  const stop = async (): Promise<void> => {
    await Promise.all(started.reverse().map((one) => one.stop()));
    rmSync(lab, { recursive: true });
  };
  try {
    for (let i = 0; i < workers; i++) {
      const settings = [
        'rooms.mixers_max=4',
        `lab.directory=${join(lab, String(i))}`,
        // All pages are one user. Ten wearers need 90 relays; those of a killed page remain for ten minutes.
        'turn.allocations_per_user_max=1000',
      ];
      const server = await serve(undefined, settings.flatMap((setting) => ['--set', setting]));
      started.push(server);
      if (i === 0) await samePages(server.url);
      started.push(simulate(server.url));
      process.env[`TEST_SERVER_URL_${i}`] = server.url;
    }
  } catch (error) {
    await stop();
    throw error;
  }
  return stop;
}

/**
 * Checks that the server embeds the pages of web/pack. The pages are embedded at build time, so an older binary serves
 * older pages.
 */
async function samePages(url: string): Promise<void> {
  const manifest = JSON.parse(readFileSync(new URL('../pack/manifest.json', import.meta.url), 'utf8')) as { path: string; etag: string }[];
  for (const { path, etag } of manifest) {
    const served = await fetch(url + path);
    await served.body?.cancel();
    if (served.headers.get('etag') !== etag)
      throw new Error(`The server has other pages than web/pack (${path}): npm run build, then cargo build -p millrace-cli.`);
  }
}
