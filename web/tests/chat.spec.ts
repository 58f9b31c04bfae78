// The chat between two browsers: over every transport, offline, across reloads and restarts, with edits, reactions and
// hostile input, in every look.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, type Browser, type BrowserContext, type Page } from '@playwright/test';
import type { Event } from '../../sdk/typescript/src/index.ts';
import { Conversation } from '../src/pages/chat/conversation.ts';
import { subjectOf } from '../src/pages/chat/me.ts';
import { Outbox, WAITING_MAX } from '../src/pages/chat/outbox.ts';
import { authorOf, channelOf, nameOf } from '../src/pages/chat/post.ts';
import { TRANSPORTS, transportLabel } from '../src/lib/transports.ts';
import { BEST, LOOKS, test, url, violations } from './page.ts';
import { binary, serve, type Server } from './server.ts';

let channels = 0;
const fresh = (): string => `c${process.pid}-${++channels}`;
const messages = (page: Page) => page.locator('[data-id] .text');
const texts = async (page: Page): Promise<string[]> => (await messages(page).allTextContents()).map((text) => text.trim());
const field = (page: Page) => page.getByRole('textbox', { name: 'Message' });

/** Opens the page as a user of a browser of its own. */
async function enter(context: BrowserContext, name: string, channel: string, { via = '', origin = url('') } = {}): Promise<Page> {
  const page = await context.newPage();
  await page.goto(`${origin}/chat${via && `?via=${via}`}#${channel}`);
  await page.getByLabel('Your name').fill(name);
  await page.getByRole('button', { name: 'Start writing' }).click();
  await expect(field(page)).toBeVisible();
  await expect(page.getByRole('log')).toHaveAttribute('aria-busy', 'false');
  return page;
}

async function write(page: Page, text: string): Promise<void> {
  await field(page).fill(text);
  await field(page).press('Enter');
}

/** Runs a test with two users, each with a browser context of its own. */
async function pair(browser: Browser, run: (ann: BrowserContext, bob: BrowserContext) => Promise<void>): Promise<void> {
  const [ann, bob] = [await browser.newContext(), await browser.newContext()];
  try {
    await run(ann, bob);
  } finally {
    await ann.close();
    await bob.close();
  }
}

for (const { name } of TRANSPORTS) {
  test(`two browsers chat over ${name}`, async ({ browser }) => {
    await pair(browser, async (annContext, bobContext) => {
      const channel = fresh();
      const ann = await enter(annContext, 'Ann', channel, { via: name });
      const bob = await enter(bobContext, 'Bob', channel, { via: name });
      await expect(ann.getByRole('status').first()).toContainText(transportLabel(name));
      await expect(ann.locator('.rtt')).toHaveText(/\d+ ms/);
      await expect(ann.getByRole('list', { name: 'Members' })).toContainText('Bob');
      for (let nr = 1; nr <= 3; nr++) {
        await write(ann, `from Ann ${nr}`);
        await expect.poll(() => texts(bob)).toContain(`from Ann ${nr}`);
        await write(bob, `from Bob ${nr}`);
        await expect.poll(() => texts(ann)).toContain(`from Bob ${nr}`);
      }
      const all = [1, 2, 3].flatMap((nr) => [`from Ann ${nr}`, `from Bob ${nr}`]);
      for (const page of [ann, bob]) {
        await expect.poll(() => texts(page)).toEqual(all);
        await expect(page.getByText('Waiting to be sent')).toHaveCount(0);
      }
    });
  });
}

test('messages written offline are sent once and in order, also across a reload and a restart of the server', async ({ browser }) => {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-chat-'));
  const engine = ['--engine', `sqlite:${join(folder, 'chat.db')}`];
  let server: Server = await serve(undefined, engine);
  const { origin, host } = new URL(server.url);
  try {
    await pair(browser, async (annContext, bobContext) => {
      const ann = await enter(annContext, 'Ann', 'lobby', { origin });
      const bob = await enter(bobContext, 'Bob', 'lobby', { origin, via: 'sse' });
      await write(ann, 'one');
      await expect.poll(() => texts(bob)).toEqual(['one']);

      // Ann is offline, Bob writes meanwhile.
      await annContext.setOffline(true);
      await expect(ann.getByText('No connection')).toBeVisible();
      for (const text of ['two', 'three']) await write(ann, text);
      await expect(ann.getByText('Waiting to be sent')).toHaveCount(2);
      await write(bob, 'from Bob');
      await annContext.setOffline(false);
      const afterFirst = ['one', 'from Bob', 'two', 'three'];
      for (const page of [ann, bob]) await expect.poll(() => texts(page)).toEqual(afterFirst);

      // The server is killed. Both write, Ann reloads nothing, Bob waits.
      await server.kill();
      for (const text of ['four', 'five', 'six']) await write(ann, text);
      await expect(ann.getByText('Waiting to be sent')).toHaveCount(3);
      await write(bob, 'late');
      server = await serve(host, engine);
      const expected = [...afterFirst, 'four', 'five', 'six', 'late'].sort();
      for (const page of [ann, bob]) await expect.poll(async () => (await texts(page)).toSorted(), { timeout: 60_000 }).toEqual(expected);
      const order = (await texts(bob)).filter((text) => ['four', 'five', 'six'].includes(text));
      expect(order, 'in order').toEqual(['four', 'five', 'six']);
      await expect.poll(() => texts(ann)).toEqual(await texts(bob));

      // Requests of Ann's page fail while it is reloaded: the messages are in the browser.
      const block = /\/v1\//;
      await annContext.route(block, (route) => route.abort());
      await annContext.routeWebSocket(block, (socket) => void socket.close());
      await ann.reload();
      await expect(field(ann)).toBeVisible();
      for (const text of ['seven', 'eight']) await write(ann, text);
      await expect(ann.getByText('Waiting to be sent')).toHaveCount(2);
      await annContext.unrouteAll();
      await ann.close();
      const again = await annContext.newPage();
      await again.goto(`${origin}/chat`);
      const all = [...(await texts(bob)).slice(0, 8), 'seven', 'eight'];
      for (const page of [again, bob]) await expect.poll(() => texts(page), { timeout: 60_000 }).toEqual(all);
      await expect(again.getByText('Waiting to be sent')).toHaveCount(0);
      expect(await again.evaluate(() => Object.keys(localStorage).filter((key) => key.startsWith('millrace-chat-outbox')))).toEqual([]);

      // Everything is in the channel exactly once.
      const { messages } = (await (await again.request.get(`${origin}/v1/channels/chat/lobby?since=earliest`)).json()) as { messages: { key: string }[] };
      expect(messages.length).toBe(10);
      expect(new Set(messages.map(({ key }) => key)).size).toBe(10);
    });
  } finally {
    await server.stop();
    rmSync(folder, { recursive: true });
  }
});

test('own messages are edited and deleted, others react', async ({ browser }) => {
  await pair(browser, async (annContext, bobContext) => {
    const channel = fresh();
    const ann = await enter(annContext, 'Ann', channel);
    const bob = await enter(bobContext, 'Bob', channel, { via: 'long-poll' });
    for (const text of ['first', 'second']) await write(ann, text);
    await expect.poll(() => texts(bob)).toEqual(['first', 'second']);

    await field(ann).press('ArrowUp');
    await expect(ann.getByText('Edit message')).toBeVisible();
    await expect(ann.getByRole('textbox', { name: 'New text' })).toHaveValue('second');
    await ann.getByRole('textbox', { name: 'New text' }).fill('second, corrected');
    await ann.getByRole('textbox', { name: 'New text' }).press('Enter');
    for (const page of [ann, bob]) await expect.poll(() => texts(page)).toEqual(['first', 'second, corrected edited']);

    const first = bob.getByRole('article').first();
    await first.getByRole('button', { name: 'Actions' }).click();
    await expect(first.getByRole('button', { name: 'Edit' }), 'not the own message').toHaveCount(0);
    await first.getByRole('button', { name: 'React with 🎉' }).click();
    const reaction = ann.getByRole('button', { name: '🎉 1, Bob' });
    await reaction.click();
    await expect(bob.getByRole('button', { name: '🎉 2, ' })).toBeVisible();
    await ann.getByRole('button', { name: '🎉 2, ' }).click();
    await expect(bob.getByRole('button', { name: '🎉 1, Bob' })).toBeVisible();

    const mine = ann.getByRole('article').first();
    await mine.getByRole('button', { name: 'Actions' }).click();
    await mine.getByRole('button', { name: 'Delete' }).click();
    await mine.getByRole('button', { name: 'Delete for everyone?' }).click();
    for (const page of [ann, bob]) await expect.poll(() => texts(page)).toEqual(['Message deleted', 'second, corrected edited']);

    // A page that opens later sees the newest version of each message.
    const late = await enter(await browser.newContext(), 'Eve', channel);
    await expect.poll(() => texts(late)).toEqual(['Message deleted', 'second, corrected edited']);
    await late.context().close();
  });
});

test('history is read page by page, and an edit of an old message is shown', async ({ browser, request }) => {
  const channel = fresh();
  const lines = Array.from({ length: 230 }, (_, nr) => JSON.stringify({ channel: `chat/${channel}`, key: `cat.m${nr}`, data: { name: 'Cat', text: `message ${nr}` } }));
  lines.push(JSON.stringify({ channel: `chat/${channel}`, key: 'cat.m3', data: { name: 'Cat', text: 'changed 3', sent: Date.now() } }));
  expect((await request.post(url('/v1/publish'), { data: lines.join('\n'), headers: { 'content-type': 'application/x-ndjson' } })).ok()).toBe(true);
  const context = await browser.newContext();
  try {
    const page = await enter(context, 'Ann', channel);
    await expect.poll(() => texts(page)).toHaveLength(49);
    expect((await texts(page)).at(-1)).toBe('message 229');
    expect((await texts(page))[0]).toBe('message 181');
    await expect(messages(page).last()).toBeInViewport();
    // The first message that the user sees stays in place while older ones are put before it.
    await page.getByRole('log').evaluate((log) => log.scrollTo({ top: 100 }));
    await expect.poll(() => texts(page)).toHaveLength(99);
    await expect(messages(page).filter({ hasText: 'message 181' })).toBeInViewport();
    for (let count = 149; count < 230; count += 50) {
      await page.getByRole('log').evaluate((log) => log.scrollTo({ top: 0 }));
      await expect.poll(async () => (await texts(page)).length).toBeGreaterThanOrEqual(count);
    }
    await page.getByRole('log').evaluate((log) => log.scrollTo({ top: 0 }));
    await expect(page.getByText('This is the beginning')).toBeVisible();
    const all = await texts(page);
    expect([all.length, all[0], all[3], all[4]]).toEqual([230, 'message 0', 'changed 3 edited', 'message 4']);
    await page.getByRole('button', { name: 'Newest messages' }).click();
    await expect(messages(page).last()).toBeInViewport();
  } finally {
    await context.close();
  }
});

test('channels are created, and unread messages are counted, also across a reload', async ({ browser }) => {
  await pair(browser, async (annContext, bobContext) => {
    const [home, other] = [fresh(), fresh()];
    const ann = await enter(annContext, 'Ann', home);
    const bob = await enter(bobContext, 'Bob', home);
    const link = (page: Page, name: string) => page.getByRole('navigation', { name: 'Channels' }).getByRole('link', { name: new RegExp(`^${name}( |$)`) });

    await bob.getByLabel('New channel').fill('No / slash');
    await bob.getByRole('button', { name: 'Create' }).click();
    await expect(bob.getByText('A name has letters')).toBeVisible();
    await bob.getByLabel('New channel').fill(`#${other.toUpperCase()}`);
    await bob.getByRole('button', { name: 'Create' }).click();
    await expect(bob.getByRole('heading', { level: 1 })).toContainText(other);
    await expect(link(ann, other)).toBeVisible();

    for (const text of ['a', 'b']) await write(bob, text);
    await expect(link(ann, other)).toContainText('2 unread');
    await expect.poll(() => ann.title()).toContain('(2)');
    await ann.reload();
    await expect(link(ann, other)).toContainText('2 unread');
    await link(ann, other).click();
    await expect.poll(() => texts(ann)).toEqual(['a', 'b']);
    await expect(link(ann, other)).not.toContainText('unread');
    await ann.goBack();
    await expect(ann.getByRole('heading', { level: 1 })).toContainText(home);
    await ann.reload();
    await expect(ann.getByRole('log')).toHaveAttribute('aria-busy', 'false');
    await expect(link(ann, other)).not.toContainText('unread');
  });
});

test('members join and leave, and typing is shown for a moment and not stored', async ({ browser, request }) => {
  await pair(browser, async (annContext, bobContext) => {
    const channel = fresh();
    const ann = await enter(annContext, 'Ann', channel);
    const bob = await enter(bobContext, 'Bob', channel, { via: 'http-stream' });
    await expect(ann.getByText('Bob joined')).toBeVisible();
    await field(bob).pressSequentially('hel');
    await expect(ann.getByText('Bob is typing…')).toBeVisible();
    await expect(ann.getByText('Bob is typing…')).toHaveCount(0, { timeout: 15_000 });
    const stored = async () => (await request.get(url(`/v1/channels/chat/${channel}/typing?since=earliest`))).status();
    await expect.poll(stored, { message: 'nothing remains', timeout: 15_000 }).toBe(204);
    await field(bob).press('Enter');
    await expect.poll(() => texts(ann)).toEqual(['hel']);

    await bob.getByRole('button', { name: 'Change' }).click();
    await bob.getByRole('textbox', { name: 'Your name' }).fill('Robert');
    await bob.getByRole('button', { name: 'Save' }).click();
    await expect(ann.getByRole('list', { name: 'Members' })).toContainText('Robert');
    await bob.reload();
    await expect(bob.getByText('You are Robert')).toBeVisible();
    await bob.close();
    await expect(ann.getByText('Robert left')).toBeVisible();
    await expect(ann.getByRole('list', { name: 'Members' })).not.toContainText('Robert');
  });
});

test('names and texts of others are text, whatever they contain', async ({ browser, request, page }) => {
  const channel = fresh();
  const publish = async (data: unknown, key?: string) => {
    const headers = { 'content-type': 'application/json', ...(key && { 'millrace-key': key }) };
    expect((await request.post(url(`/v1/channels/chat/${channel}`), { data: JSON.stringify(data), headers })).ok()).toBe(true);
  };
  const html = '<img src=x onerror="document.title=1"><script>document.title=2</script>';
  const rtl = 'שלום \u202E reversed 👩‍👩‍👧‍👦';
  const long = 'x'.repeat(20_000);
  await publish({ name: html, text: html }, 'eve.1');
  await publish({ name: 'A\u0000\n\nB', text: rtl }, 'eve.2');
  await publish({ name: 'N'.repeat(500), text: long }, 'eve.3');
  await publish({ name: 'curl', text: 'without a key' });
  await publish({ name: 'Eve', react: 'eve.2', emoji: ['<b>', '👍', 7] }, 'eve.r');
  for (const [index, wrong] of [null, 5, [], {}, { text: 5 }, { text: '  ' }, { deleted: true }, { text: 'x', sent: 'y', name: 3 }].entries()) await publish(wrong, `odd.${index}`);
  const errors: string[] = [];
  page.on('pageerror', (error) => errors.push(error.message));
  await page.goto(url(`/chat#${channel}`));
  await expect.poll(() => texts(page)).toHaveLength(5);
  const shown = await texts(page);
  expect([shown[0], shown[1], shown[3], shown[4]]).toEqual([html, rtl, 'without a key', 'x']);
  expect(shown[2]!.length).toBe(4096);
  await expect(page.getByText('A B', { exact: true })).toBeVisible();
  await expect(page.locator('.head bdi').first()).toHaveText(`${html.slice(0, 39)}…`);
  await expect(page.locator('.reactions button')).toHaveText(['👍 1']);
  expect(await page.evaluate(() => document.querySelector('main img, main script'))).toBeNull();
  expect(await page.title()).toContain('Chat');
  expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
  expect(errors).toEqual([]);

  // A text of 4,096 bytes is sent, a longer one is not.
  const context = await browser.newContext();
  try {
    const ann = await enter(context, 'Ann', fresh());
    await field(ann).fill('ü'.repeat(2_048));
    await expect(ann.getByText('0 bytes left')).toBeVisible();
    await field(ann).press('Enter');
    await expect.poll(() => texts(ann)).toEqual(['ü'.repeat(2_048)]);
    await field(ann).fill('ü'.repeat(2_049));
    await expect(ann.getByText('2 bytes too long')).toBeVisible();
    await expect(ann.getByRole('button', { name: 'Send' })).toBeDisabled();
    await field(ann).press('Enter');
    expect(await texts(ann)).toHaveLength(1);
  } finally {
    await context.close();
  }
});

test.describe('with tokens', () => {
  let home: string, server: Server;
  const env = (): NodeJS.ProcessEnv => ({ HOME: home, XDG_DATA_HOME: '' });
  const tokenOf = (subject: string, ...args: string[]): string => {
    const all = ['subscribe', 'publish', 'history'].flatMap((permission) => [`--${permission}`, 'chat/#', `--${permission}`, 'chat-lists/#']);
    const given = ['token', 'create', '--key', join(home, 'millrace.key'), '--sub', subject, '--expires', '1h', ...(args.length > 0 ? args : all)];
    return execFileSync(binary(), given, { encoding: 'utf8', env: { ...process.env, ...env() } }).trim();
  };
  test.beforeAll(async () => {
    home = mkdtempSync(join(tmpdir(), 'millrace-chat-tokens-'));
    execFileSync(binary(), ['token', 'key', '--out', join(home, 'millrace.key')], { env: { ...process.env, ...env() } });
    server = await serve(undefined, ['--set', `auth.keys=["${join(home, 'millrace.key.pub')}"]`], env());
  });
  test.afterAll(async () => {
    await server?.stop();
    rmSync(home, { recursive: true });
  });

  test('the subject is the name, and nobody edits the messages of others', async ({ browser }) => {
    await pair(browser, async (annContext, bobContext) => {
      const [ann, bob] = [await annContext.newPage(), await bobContext.newPage()];
      await ann.goto(`${server.url}/chat?via=sse#token=${tokenOf('ann@example.com')}`);
      await bob.goto(`${server.url}/chat#token=${tokenOf('bob')}`);
      await write(ann, 'from Ann');
      await expect.poll(() => texts(bob)).toEqual(['from Ann']);
      await expect(bob.locator('.head b').first()).toHaveText('ann@example.com');
      await expect(bob.getByRole('list', { name: 'Members' })).toContainText('ann@example.com');
      await expect(bob.getByRole('button', { name: 'Change' })).toHaveCount(0);
      const id = (await bob.getByRole('article').first().getAttribute('data-id'))!;
      expect(id).toMatch(/^ann@example\.com\//);

      // Bob's own program tries to edit and to delete it, and to write under Ann's name.
      const publish = (data: unknown, key: string) =>
        bob.request.post(`${server.url}/v1/channels/chat/lobby`, { data, headers: { 'millrace-key': key, authorization: `Bearer ${tokenOf('bob')}` } });
      for (const data of [{ text: 'forged', sent: 1 }, { deleted: true, sent: 1 }]) expect((await publish(data, id)).status()).toBe(403);
      expect((await publish({ name: 'ann@example.com', text: 'forged' }, 'ann@example.com/1')).status()).toBe(403);
      // A key without a subject is possible, but does not pass for the name of a user.
      expect((await publish({ name: 'ann@example.com', text: 'who am I' }, 'ann@example.com.1')).status()).toBe(200);
      for (const page of [ann, bob]) {
        await expect.poll(() => texts(page)).toEqual(['from Ann', 'who am I']);
        await expect(page.getByText('not verified')).toBeVisible();
      }
      const other = ann.getByRole('article').nth(1);
      await other.hover();
      await other.getByRole('button', { name: 'Actions' }).click();
      await expect(other.getByRole('button', { name: 'Edit' })).toHaveCount(0);
    });
  });

  test('without a token the page asks for one, and a token to read cannot write', async ({ page }) => {
    await page.goto(`${server.url}/chat`);
    await expect(page.getByText('This server requires a token')).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    await page.getByRole('textbox', { name: 'Token' }).fill(tokenOf('reader', '--subscribe', 'chat/#', '--history', 'chat/#', '--subscribe', 'chat-lists/#'));
    await page.getByRole('button', { name: 'Continue' }).click();
    await expect(page.getByRole('log')).toHaveAttribute('aria-busy', 'false');
    await write(page, 'may I?');
    await expect(page.getByText('Not sent: ')).toContainText('publish');
    await page.getByRole('button', { name: 'Discard' }).click();
    await expect(page.getByText('may I?')).toHaveCount(0);
  });
});

/** Returns the event of a publication. */
const event = (offset: number, key: string, data: object): Event => ({ key, data, position: `e:${offset}`, offset: BigInt(offset), publishedAt: offset * 1_000, receivedAt: 0, channel: 'chat/x', replayed: false });

test('the newest publication of a key is shown, in whatever order pages and new messages arrive', () => {
  const log = [
    event(1, 'a.1', { name: 'A', text: 'one' }),
    event(2, 'b.1', { name: 'B', text: 'two' }),
    event(3, 'a.1', { name: 'A', text: 'one, changed', sent: 1_000 }),
    event(4, 'c.r', { name: 'C', react: 'b.1', emoji: ['👍'] }),
    event(5, 'd.0', { name: 'D', text: 'zero' }),
    event(6, 'b.1', { name: 'B', deleted: true, sent: 2_000 }),
    event(7, 'c.r', { name: 'C', react: 'b.1', emoji: ['🎉'] }),
    event(8, 'd.0', { name: 'D', text: 'zero' }), // The same message, published again.
    event(9, 'd.1', { name: 'D', text: 'three' }),
  ];
  for (let live = 0; live <= log.length; live++) {
    for (let size = 1; size <= log.length; size++) {
      const conversation = new Conversation();
      let rest = log.slice(0, log.length - live);
      const later = log.slice(log.length - live);
      // Half of the new messages arrive before the first page.
      for (const one of later.slice(0, live / 2)) conversation.receive(one);
      while (rest.length > 0) {
        conversation.receiveOlder(rest.slice(-size));
        rest = rest.slice(0, -size);
      }
      for (const one of later.slice(live / 2)) conversation.receive(one);
      conversation.receiveStart();
      const shown = conversation.rows.map((row) => (row.kind === 'message' ? `${row.id} ${row.deleted ? 'deleted' : row.text}` : row.text));
      const what = `${live} new, pages of ${size}`;
      expect(new Set(shown), what).toEqual(new Set(['a.1 one, changed', 'b.1 deleted', 'd.0 zero', 'd.1 three']));
      expect(shown, what).toHaveLength(4);
      expect(shown.at(-1), what).toBe('d.1 three');
      expect(conversation.reactions('b.1', 'c'), what).toEqual([{ emoji: '🎉', names: ['C'], mine: true }]);
      for (const row of conversation.rows) expect(conversation.message(row.id), what).toBe(row);
    }
  }
  // An edit whose first version has expired is shown; a deletion is not.
  const rest = new Conversation();
  rest.receiveOlder(log.slice(2, 3));
  rest.receiveOlder([event(1, 'z.1', { name: 'Z', deleted: true, sent: 500 })]);
  rest.receiveStart();
  expect(rest.rows.map((row) => row.id)).toEqual(['a.1']);
});

test('the queue is bounded, keeps its order, and is taken over by the next page', async () => {
  const items = new Map<string, string>();
  const storage = { get length() { return items.size; }, key: (index: number) => [...items.keys()][index] ?? null, getItem: (key: string) => items.get(key) ?? null, setItem: (key: string, value: string) => void items.set(key, value), removeItem: (key: string) => void items.delete(key) };
  const published: string[] = [];
  let answer: (text: string) => Promise<void> = () => new Promise(() => {});
  const client = {
    state: { name: 'open' },
    async publish(_: string, { text }: { text: string }) {
      await answer(text);
      published.push(text);
      return { position: `e:${published.length}`, offset: 1n };
    },
  } as unknown as ConstructorParameters<typeof Outbox>[0];
  const create = (user = 'a b') => new Outbox(client, user, () => {}, () => true, storage, undefined);
  const first = create();
  for (let nr = 0; nr <= WAITING_MAX; nr++) first.add('chat/x', `a.${nr}`, { name: 'A', text: String(nr) });
  expect([first.isFull, first.waiting.length, items.size]).toEqual([true, WAITING_MAX, WAITING_MAX]);

  items.set([...items.keys()][0]!.replace(/\S+$/, 'damaged'), '{');
  answer = async (text) => {
    if (text === '3') throw Object.assign(new Error('not allowed'), { retryable: false });
  };
  const other = create('somebody');
  await other.open();
  expect(other.waiting, 'entries of another user').toEqual([]);
  const second = create();
  await second.open();
  await expect.poll(() => second.waiting.filter(({ state }) => state === 'waiting').length).toBe(0);
  expect(published).toEqual(Array.from({ length: WAITING_MAX }, (_, nr) => String(nr)).filter((text) => text !== '3'));
  expect(second.waiting.map(({ content, state, reason }) => [content.text, state, reason])).toEqual([['3', 'refused', 'not allowed']]);
  second.discard(second.waiting[0]!.idempotencyKey);
  expect([second.waiting.length, items.size]).toEqual([0, 0]);
});

test('names, channels and subjects are read as they are written', () => {
  expect([channelOf(' Tea break '), channelOf('#Lobby'), channelOf('a/b'), channelOf(''), channelOf('x'.repeat(33))]).toEqual(['tea-break', 'lobby', undefined, undefined, undefined]);
  expect([authorOf('ann@example.com/x1'), authorOf('abc.x1'), authorOf('x1'), authorOf('/x'), authorOf(undefined)].map(({ author, verified }) => `${author} ${verified}`)).toEqual(['ann@example.com true', 'abc false', ' false', ' false', ' false']);
  expect([nameOf(' a\n\u2028b '), nameOf('\u0000'), nameOf(5)]).toEqual(['a b', undefined, undefined]);
  const token = (claims: object) => `x.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.x`;
  expect([subjectOf(token({ sub: 'ünal' })), subjectOf(token({})), subjectOf('mrk_abc'), subjectOf(undefined)]).toEqual(['ünal', undefined, undefined, undefined]);
});

for (const { name, ...look } of LOOKS) {
  test.describe(name, () => {
    test.use(look);

    test('the chat looks right and is accessible', async ({ page, browser, clean }, info) => {
      const check = async (picture: string): Promise<void> => {
        expect(await violations(page, BEST), picture).toEqual([]);
        expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
        await page.screenshot({ path: info.outputPath(`${picture}.png`) });
      };
      const channel = fresh();
      await page.goto(url(`/chat#${channel}`));
      await expect(page.getByText('No messages in')).toBeVisible();
      await check('empty');
      await page.getByRole('textbox', { name: 'Your name' }).fill('Ann');
      await page.getByRole('button', { name: 'Start writing' }).click();
      const context = await browser.newContext();
      try {
        const bob = await enter(context, 'Bob', channel);
        await write(page, 'Has anyone tried the new build?');
        await expect.poll(() => texts(bob)).toHaveLength(1);
        await write(bob, 'Yes, since this morning.');
        await write(bob, 'The reconnect after a tunnel is much faster now, and the map no longer jumps.');
        await expect.poll(() => texts(page)).toHaveLength(3);
        await page.getByRole('article').nth(1).hover();
        await page.getByRole('article').nth(1).getByRole('button', { name: 'Actions' }).click();
        await check('actions');
        await page.getByRole('button', { name: 'React with 👍' }).click();
        await page.getByRole('article').first().hover();
        await page.getByRole('article').first().getByRole('button', { name: 'Actions' }).click();
        await page.getByRole('button', { name: 'Edit' }).click();
        await page.getByRole('textbox', { name: 'New text' }).fill('Has anyone tried the new build on a phone?');
        await page.getByRole('button', { name: 'Save' }).click();
        await expect.poll(() => texts(bob)).toContain('Has anyone tried the new build on a phone? edited');
        await field(bob).pressSequentially('one');
        await expect(page.getByText('Bob is typing…')).toBeVisible();
        await check('chat');
        if (look.hasTouch) {
          await page.getByRole('button', { name: 'Channels' }).click();
          await check('channels');
          await page.getByRole('button', { name: 'Close' }).click();
          await page.getByRole('button', { name: /members/ }).click();
          await expect(page.getByRole('dialog').getByRole('list', { name: 'Members' })).toContainText('Bob');
          await page.keyboard.press('Escape');
          await expect(page.getByRole('dialog')).toHaveCount(0);
        }
      } finally {
        await context.close();
      }
    });
  });
}
