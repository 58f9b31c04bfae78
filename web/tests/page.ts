// Fixtures and checks that the tests of all pages share.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { expect, test as base, type Page } from '@playwright/test';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export const url = (path: string): string => `${process.env.MILLRACE_URL}${path}`;

export const LOOKS = (['light', 'dark'] as const).flatMap((colorScheme) => [
  { name: `phone ${colorScheme}`, colorScheme, viewport: { width: 390, height: 844 }, hasTouch: true },
  { name: `desktop ${colorScheme}`, colorScheme, viewport: { width: 1280, height: 800 }, hasTouch: false },
]);

/** `clean`: fails the test when the page logs an error or sends a request to another host than its own server. */
export const test = base.extend<{ clean: void }>({
  clean: [
    async ({ page, context }, use) => {
      const errors: string[] = [];
      const foreignRequests: string[] = [];
      page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
      page.on('pageerror', (error) => errors.push(error.message));
      const check = (requested: string) => {
        const { protocol, host } = new URL(requested);
        if (protocol !== 'data:' && protocol !== 'blob:' && host !== new URL(url('/')).host) foreignRequests.push(requested);
      };
      context.on('request', (request) => check(request.url()));
      page.on('websocket', (socket) => check(socket.url()));
      await use();
      expect.soft(errors, 'console errors').toEqual([]);
      expect.soft(foreignRequests, 'requests to other machines').toEqual([]);
    },
    { auto: false },
  ],
});

/** Tags of the axe rules to check. `best-practice` adds the order of headings and the landmarks. */
export const WCAG = ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'];
export const BEST = [...WCAG, 'best-practice'];

/** The axe rules whose result depends on colors. */
const COLOR_RULES = ['color-contrast', 'link-in-text-block'];

/** A page of Playwright or of puppeteer. */
interface Evaluates {
  evaluate(script: string): Promise<unknown>;
  evaluate<Argument, Result>(fn: (argument: Argument) => Promise<Result>, argument: Argument): Promise<Result>;
}

/**
 * Returns the axe violations of the page. `rules`: axe rules to check in addition to those of `tags`. A dark page
 * differs from the light one only in its colors, so only these are checked: the caller checks the light page, too.
 */
export async function violations(page: Evaluates, tags: readonly string[] = WCAG, rules: readonly string[] = []): Promise<string[]> {
  const [dark, isLoaded] = (await page.evaluate(`[matchMedia('(prefers-color-scheme: dark)').matches, 'axe' in window]`)) as [boolean, boolean];
  if (!isLoaded) await page.evaluate(axe);
  return page.evaluate(async ([tags, rules]) => {
    const { axe } = window as unknown as { axe: { run(options: unknown): Promise<{ violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] }> } };
    const result = await axe.run({ runOnly: tags, resultTypes: ['violations'], rules: Object.fromEntries(rules!.map((rule) => [rule, { enabled: true }])) });
    return result.violations.flatMap((v) => v.nodes.map((node) => `${v.id}: ${node.html.slice(0, 160)} (${node.failureSummary.split('\n')[1]?.trim()})`));
  }, dark ? [COLOR_RULES, []] : [tags, rules]);
}

/** Opens CarCare and waits until its map is drawn and the selected car reports. */
export async function openCar(page: Page, path = '/carcare?car=1'): Promise<void> {
  await page.goto(url(path));
  await page.locator('[data-loaded=true]').waitFor({ timeout: 30_000 });
  if (path.includes('car=')) await expect(page.getByRole('meter', { name: 'Speed' })).toHaveAttribute('aria-valuetext', /km\/h/);
}
