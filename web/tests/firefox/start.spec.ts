// The start page in Firefox: publishing, each transport that the client selects by itself, and EventSource.
import { expect } from '@playwright/test';
import { transportLabel } from '../../src/lib/transports.ts';
import { test, textOf, type Page } from './fox.ts';

const publish = (page: Page): Promise<void> => page.evaluate(() => document.querySelector<HTMLElement>('.echo button')!.click());
const isOpen = (page: Page) => expect.poll(() => page.evaluate(() => document.querySelector('.echo [role=status]')?.classList.contains('open'))).toBe(true);

for (const transport of ['websocket', 'http-stream', 'sse', 'long-poll', 'poll']) {
  test(`what is published in the page arrives over ${transport}`, async ({ open }) => {
    const page = await open('/', (page) =>
      // The client tries the transport first that connected last time.
      page.evaluateOnNewDocument((transport) => sessionStorage.setItem(`millrace:${location.origin}`, `${transport} ${Date.now()}`), transport),
    );
    await isOpen(page);
    expect(await textOf(page, '.echo [role=status]')).toContain(transportLabel(transport));
    for (const number of [1, 2]) {
      await publish(page);
      await expect.poll(() => textOf(page, '[role=log] article')).toContain(`"nr":${number}`);
    }
    expect(await page.$$eval('[role=log] article', (all) => all.length)).toBe(2);
  });
}

test('the EventSource lines work in a page of this origin', async ({ open }) => {
  const page = await open('/');
  await isOpen(page);
  const [listen, publish] = await page.$$eval('#panel-1 pre', (all) => all.map((one) => one.textContent));
  const logged = new Promise<string>((resolve) => page.on('console', (message) => message.text().includes('{"hello":"fetch"}') && resolve(message.text())));
  await page.evaluate(`(async () => { ${listen}; await new Promise((r) => (source.onopen = r)); ${publish} })()`);
  expect(await logged).toMatch(/^\S+:\d+ /);
  await expect.poll(() => textOf(page, '[role=log] article')).toContain('{"hello":"fetch"}');
});
