// Simulcast from a real Chromium: each receiver gets the layer that its path can carry, and its video keeps moving.
import { expect, test, type Page } from '@playwright/test';
import { openBlankPage, join, throttledPath, quality, longestFreezes } from './room-page.ts';

test.describe.configure({ timeout: 180_000 });

interface Report {
  readonly name: string;
  readonly estimate_kbps: number | null;
  readonly sends: readonly { readonly kind: string; readonly layers_kbps: readonly number[] }[];
  readonly receives: readonly { readonly from: string; readonly kind: string; readonly layer: number | null; readonly layer_switches: number; readonly last_switch: { readonly why: string } | null; readonly is_waiting: boolean }[];
}

test('simulcast sends a lower layer to a narrow path', async ({ browser }) => {
  const server = process.env.MILLRACE_URL!;
  const room = `simulcast-${process.pid}`;
  const context = await browser.newContext();
  const [sender, wide, near] = [await openBlankPage(context, server), await openBlankPage(context, server), await openBlankPage(context, server)] as const;
  const networkPath = await throttledPath(near);
  const began = Date.now();
  const from = await join(sender, room, { topology: 'switch', canvas: [960, 540] });
  const [wideId, nearId] = [await join(wide, room, { video: false }), await join(near, room, { video: false })];

  /** Returns the SFU's view: the rates of the layers, the layer sent to each receiver, and the bandwidth estimates. */
  const seen = async () => {
    const { switch: reports } = (await (await fetch(`${server}/v1/rooms/${room}`)).json()) as { switch: Report[] };
    const of = (id: string) => reports.find(({ name }) => name === id);
    const to = (id: string) => of(id)?.receives.find((one) => one.from === from && one.kind === 'video');
    const layers = of(from)?.sends.find(({ kind }) => kind === 'video')?.layers_kbps ?? [];
    const rate = (id: string): number => layers[to(id)?.layer ?? -1] ?? 0;
    return { layers, to, rate, estimates: [wideId, nearId].map((id) => of(id)?.estimate_kbps) };
  };
  const width = (page: Page) => page.evaluate(() => document.querySelector('video')?.videoWidth ?? 0);
  const frames = async (page: Page): Promise<number> => (await quality(page)).links[0]?.frames ?? 0;
  const moves = async (...pages: Page[]): Promise<void> => {
    const before = await Promise.all(pages.map(frames));
    for (const [i, page] of pages.entries()) await expect.poll(() => frames(page), { timeout: 20_000 }).toBeGreaterThan(before[i]! + 20);
  };
  const show = async (what: string): Promise<void> => {
    const { layers, to, estimates } = await seen();
    const sent = [wideId, nearId].map((id) => to(id)).map((one) => ({ layer: one?.layer, switches: one?.layer_switches }));
    console.log(JSON.stringify({ simulcast: what, after_ms: Date.now() - began, layers_kbps: layers, wide_near: sent, estimates_kbps: estimates, widths: [await width(wide), await width(near)], longest_still_ms: await longestFreezes([wide, near], [from]) }));
  };

  const comes = async (what: string, is: () => Promise<boolean>): Promise<void> => {
    await expect
      .poll(is, { timeout: 60_000, message: what })
      .toBe(true)
      .catch(async (failed: unknown) => {
        await show(`not ${what}`);
        throw failed;
      });
    await moves(wide, near);
    await show(what);
  };

  await comes('three layers, and more than the lowest for both', async () => {
    const { layers, rate } = await seen();
    const least = Math.min(...layers);
    return layers.length === 3 && least > 0 && rate(wideId) > least && rate(nearId) > least && (await width(near)) > 240;
  });
  const switches = (await seen()).to(nearId)!.layer_switches;
  networkPath.carry(300);
  const reasons = new Set<string | undefined>();
  await comes('another layer for the narrow path', async () => {
    const { to, rate } = await seen();
    reasons.add(to(nearId)!.last_switch?.why);
    return to(nearId)!.layer_switches > switches && rate(nearId) > 0 && rate(wideId) > 1.5 * rate(nearId) && (await width(wide)) > (await width(near));
  });
  expect([...reasons], 'the SFU reports the reason').toContain('narrower');
  networkPath.stop();
  await context.close();
});
