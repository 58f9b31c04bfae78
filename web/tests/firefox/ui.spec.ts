// The operator pages in Firefox: a message is published and seen live, the palette opens a page, a node is drained.
import { expect } from '@playwright/test';
import { serve } from '../server.ts';
import { click, test, textOf } from './fox.ts';

const PALETTE = 'dialog input[role=combobox]';

test('a message is published, the palette opens a page, and a node is drained', async ({ open }) => {
  const own = await serve(undefined, ['--set', 'drain.announce=1h']);
  try {
    const page = await open(`${own.url}/ui/channels?channel=fox/1`);
    await page.waitForSelector('form textarea');
    await page.type('form textarea', '"<b>hello</b>"');
    await click(page, 'form button.primary');
    await expect.poll(() => textOf(page, '[data-offset="1"] pre')).toBe('<b>hello</b>');
    expect(await textOf(page, 'form [role=status]')).toMatch(/^Published at .+:1$/);

    await page.keyboard.down('Control');
    await page.keyboard.press('k');
    await page.keyboard.up('Control');
    await page.waitForSelector(PALETTE);
    await page.type(PALETTE, 'fox');
    await expect.poll(() => page.$$eval('[role=option]', (all) => all.map((one) => one.textContent))).toContainEqual(expect.stringContaining('fox/1'));
    await page.keyboard.press('Escape');
    await page.waitForSelector(PALETTE, { hidden: true });
    await page.keyboard.down('Control');
    await page.keyboard.press('k');
    await page.keyboard.up('Control');
    await page.waitForSelector(PALETTE);
    await page.type(PALETTE, 'clus');
    await page.keyboard.press('Enter');

    await expect.poll(() => textOf(page, '[data-node] .badge:last-of-type')).toBe('ready');
    await click(page, '[data-node] button');
    await expect.poll(() => textOf(page, 'dialog')).toContain('There is no other node');
    await click(page, 'dialog .danger');
    await expect.poll(() => fetch(`${own.url}/readyz`).then(({ status }) => status)).toBe(503);
    await expect.poll(() => textOf(page, '[data-node]')).toContain('draining');
    // Before the server stops, because Firefox logs each refused connection as an error.
    await page.close();
  } finally {
    await own.kill();
  }
});
