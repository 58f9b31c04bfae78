// Renders public/icon.svg to the PNG sizes that phones ask for. Run after changing the icon: `node scripts/icons.mjs`.
import { readFile } from 'node:fs/promises';
import { chromium } from '@playwright/test';

const root = new URL('../public/', import.meta.url);
const svg = await readFile(new URL('icon.svg', root), 'utf8');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const page = await browser.newPage();

/** A maskable icon is cut to any shape, so its ground reaches the corners. */
const square = svg.replace('rx="112"', 'rx="0"');
for (const [name, size, source] of [['icon-192', 192, svg], ['icon-512', 512, svg], ['icon-maskable-512', 512, square]]) {
  await page.setViewportSize({ width: size, height: size });
  await page.setContent(`<style>body{margin:0}svg{display:block;width:100vw;height:100vh}</style>${source}`);
  await page.screenshot({ path: new URL(`${name}.png`, root).pathname, omitBackground: true });
}
await browser.close();
