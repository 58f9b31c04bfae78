// The chat in Firefox: two tabs talk over each transport, and messages written without a server are sent later.
import { expect } from '@playwright/test';
import { TRANSPORTS, transportLabel } from '../../src/lib/transports.ts';
import { serve } from '../server.ts';
import { click, needsUdp, reachable, test, textOf, type Page } from './fox.ts';

const texts = (page: Page): Promise<string[]> => page.$$eval('[data-id] .text', (all) => all.map((text) => text.textContent!.trim()));
const write = async (page: Page, text: string): Promise<void> => {
  await page.bringToFront();
  await page.type('#message', `${text}\n`);
};

async function enter(page: Page, name: string): Promise<Page> {
  await page.locator('#name').fill(name);
  await click(page, 'form .primary');
  await page.waitForSelector('#message');
  return page;
}

for (const { name } of TRANSPORTS) {
  test(`two tabs chat over ${name}`, async ({ open }) => {
    if (name === 'data-channel') needsUdp();
    const ann = await enter(await open(`/chat?via=${name}#fox-${name}`), 'Ann');
    // The tabs share the name of their browser.
    const bob = await open(`/chat?via=${name}#fox-${name}`);
    await bob.waitForSelector('#message');
    await expect.poll(() => textOf(bob, '.connection [role=status]')).toContain(transportLabel(name));
    await write(ann, 'hello');
    await expect.poll(() => texts(bob)).toEqual(['hello']);
    await write(bob, 'hello yourself');
    for (const page of [ann, bob]) await expect.poll(() => texts(page)).toEqual(['hello', 'hello yourself']);
  });
}

test.describe(() => {
  // Firefox logs each refused connection as an error.
  test.use({ mayComplain: true });

  test('messages written without a server are sent once it is back', async ({ open }) => {
    let own = await serve(undefined, reachable());
    const { origin, host } = new URL(own.url);
    try {
      const page = await enter(await open(`${origin}/chat`), 'Ann');
      await expect.poll(() => textOf(page, '.connection [role=status]')).toContain('WebSocket');
      await own.kill();
      for (const text of ['one', 'two']) await write(page, text);
      await expect.poll(() => page.$$eval('[data-state=waiting]', (all) => all.length)).toBe(2);
      own = await serve(host, reachable());
      await expect.poll(() => page.$$eval('[data-state=waiting]', (all) => all.length), { timeout: 60_000 }).toBe(0);
      await expect.poll(() => texts(page)).toEqual(['one', 'two']);
      await page.close();
    } finally {
      await own.stop();
    }
  });
});
