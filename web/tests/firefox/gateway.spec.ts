// A gateway in one tab of Firefox, and devices in another.
import { expect } from '@playwright/test';
import type {} from '../../src/pages/gateway/window';
import { click, test } from './fox.ts';

test('a gateway in Firefox forwards what devices send', async ({ open }) => {
  const name = `fox-${process.pid}`;
  const gateway = await open(`/gateway/${name}?mode=forward`);
  await gateway.waitForFunction(() => window.gateway !== undefined);
  const devices = await open(`/gateway/${name}?device`);
  await click(devices, 'form button.primary');
  const received = () => devices.evaluate(() => window.devices!.received.length);
  await expect.poll(received, { timeout: 60_000 }).toBeGreaterThan(20);
  expect(await gateway.evaluate(() => window.gateway!.snapshot().stats)).toMatchObject({ lost: 0, nowhere: 0 });
});
