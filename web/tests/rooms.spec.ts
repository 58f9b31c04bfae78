// Rooms in a real Chromium: video and data between tabs for each topology, and recovery after failures.
import { expect, test, type Browser, type Page } from '@playwright/test';
import type { Topology } from '../../sdk/typescript/src/room/index.ts';
import { openBlankPage, cuttableProxy, join, receivedNumbers, audioStats, middlebox, quality, sendAll, longestFreezes, tones, type AudioStats } from './room-page.ts';
import { serve } from './server.ts';

test.describe.configure({ timeout: 240_000 });

const server = (): string => process.env.MILLRACE_URL!;
let rooms = 0;
const uniqueRoom = (): string => `room-${process.pid}-${++rooms}`;

interface Call {
  readonly room: string;
  readonly pages: Page[];
  readonly ids: string[];
}

/** Opens `count` tabs and lets them join one room, one after the other. */
async function meet(browser: Browser, count: number, topology: Topology, video = true, tone = false): Promise<Call> {
  const context = await browser.newContext();
  const room = uniqueRoom();
  const [pages, ids]: [Page[], string[]] = [[], []];
  for (let i = 0; i < count; i++) pages.push(await openBlankPage(context, server()));
  for (const page of pages) ids.push(await join(page, room, { topology, video, tone, name: `peer ${ids.length}` }));
  return { room, pages, ids };
}

/** Logs the state and statistics of all tabs of a failed call, for diagnosis. */
async function logState({ pages }: Call): Promise<void> {
  for (const page of pages.filter((page) => !page.isClosed())) {
    const { state, links, gaps, ended } = await page.evaluate(() => ({ ...window.pageState, state: window.pageState.room.state, room: undefined, stream: undefined, streams: undefined, data: undefined }));
    console.log(JSON.stringify({ state, links, gaps, ended, quality: await quality(page) }));
  }
}

/** Waits until every page has received a video frame from every other participant. */
async function expectAllVideo(call: Call): Promise<void> {
  const { pages, ids } = call;
  for (const [i, page] of pages.entries()) {
    const others = ids.filter((id) => id !== ids[i]);
    const seen = () => page.evaluate((others) => Object.keys(window.pageState.first).filter((id) => others.includes(id)).sort(), others);
    await expect.poll(seen, { timeout: 30_000 }).toEqual([...others].sort()).catch(async (failed: unknown) => {
      await logState(call);
      throw failed;
    });
  }
}

/** Checks that every page received the numbers of every other sender once and in order, and nothing else. */
async function expectAllData({ pages, ids }: Call, count: number): Promise<void> {
  const all = Array.from({ length: count }, (_, i) => i);
  for (const [i, page] of pages.entries()) {
    const wanted = Object.fromEntries(ids.filter((id) => id !== ids[i]).map((id) => [id, all]));
    await expect.poll(async () => Object.values(await receivedNumbers(page)).flat().length, { timeout: 40_000 }).toBeGreaterThanOrEqual((ids.length - 1) * count);
    expect(await receivedNumbers(page)).toEqual(wanted);
  }
}

/** Measures all links for 3 s and logs the result as a line of JSON and as a table. */
async function measure(topology: string, { pages }: Call): Promise<{ fps: number; rate_kbps: number; kind: string }[]> {
  await Promise.all(pages.map(quality));
  const from = Date.now();
  await expect.poll(() => Date.now() - from, { timeout: 10_000 }).toBeGreaterThan(3_000);
  const rows = [];
  for (const [i, page] of pages.entries()) {
    const { links } = await quality(page);
    const first = await page.evaluate(() => Object.values(window.pageState.first));
    for (const link of links) rows.push({ topology, peer: i, to: link.to.slice(0, 6), rate_kbps: Math.round(link.rate_kbps), fps: +link.fps.toFixed(1), frames: link.frames, rtt_ms: link.rtt_ms === undefined ? null : +link.rtt_ms.toFixed(2), loss: link.loss, frozen_ms: link.frozen_ms, setup_ms: Math.round(Math.max(...first)), kind: link.kind });
  }
  console.log(JSON.stringify({ rooms: topology, peers: pages.length, links: rows }));
  console.table(rows);
  return rows;
}

for (const [topology, count] of [['p2p', 2], ['mesh', 3], ['star', 3], ['relay', 2], ['switch', 3], ['mixer', 3]] as const) {
  test(`${topology}: ${count} see and hear each other`, async ({ browser }) => {
    const call = await meet(browser, count, topology);
    await expectAllVideo(call);
    await sendAll(call.pages, 300);
    await expectAllData(call, 300);
    const rows = await measure(topology, call);
    expect(rows.length).toBe({ star: 2 * (count - 1), switch: count, mixer: count }[topology as string] ?? count * (count - 1));
    if (topology === 'relay') expect(rows.map(({ kind }) => kind)).toEqual(['relay', 'relay']);
    for (const { fps, rate_kbps } of rows) {
      expect(fps, 'moving video').toBeGreaterThan(5);
      expect(rate_kbps).toBeGreaterThan(50);
    }
    // A participant that leaves disappears from the state of the others at once.
    await call.pages[0]!.evaluate(() => window.pageState.room.leave());
    await expect.poll(() => call.pages[1]!.evaluate(() => window.pageState.room.state.participants.length)).toBe(count - 1);
    await call.pages[0]!.context().close();
  });
}

for (const topology of ['mesh', 'switch'] as const) {
  test(`${topology}: all participants detect the active speaker`, async ({ browser }) => {
    const call = await meet(browser, 3, topology, true, true);
    const { pages, ids, room } = call;
    await expectAllVideo(call);
    const speakers = (): Promise<(string | undefined)[]> => Promise.all(pages.map((page) => page.evaluate(() => window.pageState.speaker)));
    const setVolume = (at: number, level: number): Promise<void> => pages[at]!.evaluate((level) => window.voice(level), level);
    const floor = async (): Promise<string[]> => {
      const { switch: members } = (await (await fetch(`${server()}/v1/rooms/${room}`)).json()) as { switch: { name: string; has_floor: boolean }[] };
      return members.flatMap(({ name, has_floor }) => (has_floor ? [name] : []));
    };
    const PATIENCE = { timeout: 20_000 };
    expect(await speakers()).toEqual([undefined, undefined, undefined]);
    await setVolume(0, 0.3);
    await expect.poll(speakers, PATIENCE).toEqual([undefined, ids[0], ids[0]]);
    if (topology === 'switch') await expect.poll(floor, PATIENCE).toEqual([ids[0]]);
    // The louder participant becomes the active speaker while the first still speaks. No page reports its own
    // participant.
    await setVolume(1, 1);
    await expect.poll(speakers, PATIENCE).toEqual([ids[1], ids[0], ids[1]]);
    if (topology === 'switch') await expect.poll(floor, PATIENCE).toEqual([ids[1]]);
    await Promise.all([setVolume(0, 0), setVolume(1, 0)]);
    await expect.poll(speakers, PATIENCE).toEqual([undefined, undefined, undefined]);
    await pages[0]!.context().close();
  });
}

/** Returns the number of decoded frames on the link to `of`. */
const frames = async (page: Page, of: string): Promise<number> => (await quality(page)).links.find(({ to }) => to === of)?.frames ?? 0;
const links = (page: Page): Promise<string[]> => page.evaluate(() => window.pageState.links);
const ended = (page: Page): Promise<string | undefined> => page.evaluate(() => window.pageState.ended);

for (const topology of ['mesh', 'switch'] as const) {
  test(`${topology}: a host mute holds against the muted client`, async ({ browser }) => {
    const call = await meet(browser, 2, topology, true, true);
    const [host, guest] = call.pages as [Page, Page];
    const id = call.ids[1]!;
    const PATIENCE = { timeout: 20_000 };
    await expectAllVideo(call);
    const mute = (what: { audio?: boolean; video?: boolean }): Promise<void> => host.evaluate(([id, what]) => window.pageState.room.mute(id, what), [id, what] as const);
    const mutedByHost = (page: Page) => page.evaluate((id) => window.pageState.room.state.participants.find((one) => one.id === id)?.muted_by_host, id);
    const speaker = () => host.evaluate(() => window.pageState.speaker);
    /** The guest's tracks as the guest sends them; `seen` has the tracks as a page receives them. */
    const sent = () => guest.evaluate(() => window.pageState.stream!.getTracks().map(({ kind, enabled }) => `${kind} ${enabled ? 'on' : 'off'}`).sort());
    const seen = (page: Page) => page.evaluate((id) => window.pageState.streams[id]?.getTracks().map(({ kind, enabled }) => `${kind} ${enabled ? 'on' : 'off'}`).sort(), id);
    /** Measures for 1 s the rates at which the host receives the guest's audio and video, kbit/s. */
    const rates = async (): Promise<{ audio: number; video: number }> => {
      await quality(host);
      const from = Date.now();
      await expect.poll(() => Date.now() - from).toBeGreaterThan(1_000);
      const streams = (await quality(host)).links.flatMap((link) => link.streams);
      const of = (kind: 'audio' | 'video'): number => streams.find((one) => one.direction === 'in' && one.from === id && one.kind === kind)?.rate_kbps ?? 0;
      return { audio: of('audio'), video: of('video') };
    };

    await guest.evaluate(() => window.voice(1));
    await expect.poll(speaker, PATIENCE).toBe(id);
    expect(await seen(host)).toEqual(['audio on', 'video on']);
    await mute({ audio: true });
    await expect.poll(sent, PATIENCE).toEqual(['audio off', 'video on']);
    await expect.poll(() => seen(host), PATIENCE).toEqual(['audio off', 'video on']);
    await expect.poll(speaker, PATIENCE).toBeUndefined();
    expect([await mutedByHost(host), await mutedByHost(guest)]).toEqual([['audio'], ['audio']]);

    // The mute also holds for a client that ignores it: the SFU does not forward its audio; in a mesh receivers do not
    // play it.
    await guest.evaluate(() => window.pageState.stream!.getAudioTracks().forEach((track) => (track.enabled = true)));
    const { audio, video } = await rates();
    expect(audio > 0).toBe(topology === 'mesh');
    expect(video).toBeGreaterThan(0);
    expect([await seen(host), await speaker()]).toEqual([['audio off', 'video on'], undefined]);

    // A replaced track is muted, too. The tracks that the page no longer sends are enabled again.
    const old = await guest.evaluate(async () => {
      const { room, stream } = window.pageState;
      const next = stream!.clone();
      await room.replaceStream((window.pageState.stream = next));
      return stream!.getTracks().every(({ enabled }) => enabled);
    });
    expect(old).toBe(true);
    expect(await sent()).toEqual(['audio off', 'video on']);

    await mute({ video: true });
    await expect.poll(() => seen(host), PATIENCE).toEqual(['audio off', 'video off']);
    expect(await mutedByHost(host)).toEqual(['audio', 'video']);
    if (topology === 'switch') await expect.poll(rates, PATIENCE).toEqual({ audio: 0, video: 0 });
    const late = await openBlankPage(host.context(), server());
    await join(late, call.room, { video: false });
    await expect.poll(() => seen(late), { ...PATIENCE, message: 'a later participant neither' }).toEqual(['audio off', 'video off']);

    // The guest's own mute setting, changed while muted by the host, applies after the host unmutes.
    await guest.evaluate(() => window.pageState.room.setMuted(true));
    await mute({ audio: false, video: false });
    await expect.poll(sent, PATIENCE).toEqual(['audio off', 'video on']);
    expect(await mutedByHost(guest)).toBeUndefined();
    await guest.evaluate(() => window.pageState.room.setMuted(false));
    expect(await sent()).toEqual(['audio on', 'video on']);
    for (const page of [host, late]) await expect.poll(() => seen(page), PATIENCE).toEqual(['audio on', 'video on']);
    await expect.poll(speaker, PATIENCE).toBe(id);
    const link = topology === 'switch' ? 'switch' : id;
    const before = await frames(host, link);
    await expect.poll(() => frames(host, link), { ...PATIENCE, message: 'video resumes' }).toBeGreaterThan(before + 20);
    await host.context().close();
  });
}

for (const topology of ['mesh', 'switch'] as const) {
  test(`${topology}: G.711 is used beside Opus`, async ({ browser }) => {
    const context = await browser.newContext();
    const room = uniqueRoom();
    const pages = [await openBlankPage(context, server()), await openBlankPage(context, server())] as const;
    const ids: string[] = [];
    for (const page of pages) ids.push(await join(page, room, { topology, tone: 440, audioCodec: 'pcmu' }));
    const opus = await openBlankPage(context, server());
    ids.push(await join(opus, room, { tone: 660 }));
    const call = { room, pages: [...pages, opus], ids };
    await expectAllVideo(call);
    for (const page of call.pages) await page.evaluate(() => window.voice(0.3));
    const codecs = async (page: Page): Promise<Record<string, string>> => {
      const streams = (await quality(page)).links.flatMap((link) => link.streams);
      return Object.fromEntries(streams.filter(({ direction, kind, rate_kbps }) => direction === 'in' && kind === 'audio' && rate_kbps > 0).map(({ from, codec }) => [from, codec]));
    };
    const [one, two, three] = ids as [string, string, string];
    await expect.poll(() => codecs(pages[0]), { timeout: 20_000 }).toMatchObject({ [two]: 'PCMU' });
    await expect.poll(() => codecs(opus), { timeout: 20_000 }).toMatchObject({ [one]: 'PCMU', [two]: 'PCMU' });
    // The SFU forwards what each sends; in a mesh, both ends of a connection use the same codec.
    if (topology === 'switch') await expect.poll(() => codecs(pages[0]), { timeout: 20_000 }).toMatchObject({ [three]: 'opus' });
    await expect.poll(async () => (await tones(opus, one, [440]))[0], { timeout: 20_000, message: 'the tone is audible' }).toBeGreaterThan(-50);
    await context.close();
  });
}

test('mixer: each receives one mix of the others', async ({ browser }) => {
  const context = await browser.newContext();
  const room = uniqueRoom();
  const pages = [await openBlankPage(context, server()), await openBlankPage(context, server()), await openBlankPage(context, server())] as const;
  const [one, two, three] = pages;
  const stats = await Promise.all(pages.map(audioStats));
  const ids: string[] = [];
  // The tones differ, because two equal tones can cancel each other.
  for (const page of pages) ids.push(await join(page, room, { topology: 'mixer', tone: 330 + 110 * ids.length, name: `peer ${ids.length}` }));
  await expectAllVideo({ room, pages: [...pages], ids });
  const PATIENCE = { timeout: 30_000 };
  for (const [i, page] of pages.entries()) {
    const live = () =>
      page.evaluate(() => Object.entries(window.pageState.streams).flatMap(([of, stream]) => stream.getTracks().flatMap(({ kind, readyState }) => (readyState === 'live' ? [`${of} ${kind}`] : []))).sort());
    await expect.poll(live, PATIENCE).toEqual([...ids.filter((id) => id !== ids[i]).map((id) => `${id} video`), 'mix audio'].sort());
    expect(await page.evaluate(() => window.pageState.streams['mix']!.id)).toBe('mix');
  }
  const setVolume = (page: Page, level: number): Promise<void> => page.evaluate((level) => window.voice(level), level);
  const HZ = [330, 440, 550];
  /** Returns for each page which tones it receives. */
  const audible = () => Promise.all(pages.map(async (page) => (await tones(page, 'mix', HZ)).map((level) => level > -50)));
  /** Measures for 1 s the audio packets that each page receives, and their delay in the jitter buffer. */
  const sent = async () => {
    const count = () => Promise.all(stats.map(async (read) => (await read())[0]));
    const before = await count();
    const from = Date.now();
    await expect.poll(() => Date.now() - from).toBeGreaterThan(1_000);
    return (await count()).map((now, i) => {
      const more = (what: keyof AudioStats): number => (now?.[what] ?? 0) - (before[i]?.[what] ?? 0);
      return { packets: more('packetsReceived'), waits_ms: Math.round((1_000 * more('jitterBufferDelay')) / (more('jitterBufferEmittedCount') || 1)) };
    });
  };
  const [YES, NO] = [true, false];

  for (const page of pages) await setVolume(page, 0.3);
  await expect.poll(audible, PATIENCE).toEqual([[NO, YES, YES], [YES, NO, YES], [YES, YES, NO]]);
  const sounds = await sent();
  console.log(JSON.stringify({ rooms: 'mixer', peers: 3, sounds }));
  for (const { packets } of sounds) expect(packets, 'continuous audio').toBeGreaterThan(20);
  for (const read of stats) expect((await read()).length, 'one audio stream').toBe(1);
  expect(await Promise.all(pages.map((page) => page.evaluate(() => window.pageState.speaker))), 'mixed audio has no active speaker').toEqual([undefined, undefined, undefined]);
  const { switch: members } = (await (await fetch(`${server()}/v1/rooms/${room}`)).json()) as { switch: { receives: { from: string; kind: string }[] }[] };
  for (const { receives } of members) expect(receives.filter(({ kind }) => kind === 'audio').map(({ from }) => from)).toEqual(['mix']);

  // Only the first is audible: the third mutes itself, and the host mutes the second, whose client ignores the mute.
  const enabled = () => two.evaluate(() => window.pageState.stream!.getAudioTracks().map(({ enabled }) => enabled));
  const muted = () => two.evaluate(() => window.pageState.room.state.participants.map(({ muted, muted_by_host }) => [muted ?? false, muted_by_host ?? []]));
  await three.evaluate(() => window.pageState.room.setMuted(true));
  await expect.poll(muted, PATIENCE).toEqual([[false, []], [false, []], [true, []]]);
  await one.evaluate((id) => window.pageState.room.mute(id, { audio: true }), ids[1]!);
  await expect.poll(muted, PATIENCE).toEqual([[false, []], [false, ['audio']], [true, []]]);
  expect(await enabled()).toEqual([false]);
  await two.evaluate(() => window.pageState.stream!.getAudioTracks().forEach((track) => (track.enabled = true)));
  await expect.poll(audible, PATIENCE).toEqual([[NO, NO, NO], [YES, NO, NO], [YES, NO, NO]]);
  expect(await enabled()).toEqual([true]);

  // Now only the second is audible.
  await one.evaluate((id) => window.pageState.room.mute(id, { audio: false }), ids[1]!);
  await setVolume(one, 0);
  await expect.poll(audible, PATIENCE).toEqual([[NO, YES, NO], [NO, NO, NO], [NO, YES, NO]]);
  await setVolume(two, 0);
  await expect.poll(async () => (await sent()).map(({ packets }) => packets), { ...PATIENCE, message: 'silence sends nothing' }).toEqual([0, 0, 0]);
  await context.close();
});

test('a long polling client chats in a video room', async ({ browser }) => {
  const call = await meet(browser, 2, 'mesh');
  const page = await openBlankPage(call.pages[0]!.context(), server());
  const id = await join(page, call.room, { video: false, transports: ['long-poll'] });
  await expect.poll(() => page.evaluate(() => Object.keys(window.pageState.first).length)).toBe(2);
  await page.evaluate(() => window.pageState.room.say('hello from afar'));
  await call.pages[0]!.evaluate(() => window.pageState.room.say('hello'));
  for (const one of [page, ...call.pages]) await expect.poll(() => one.evaluate(() => [...window.pageState.chat].sort())).toEqual(['hello', 'hello from afar']);
  // The chat is an ordinary channel, so it can be read without a page.
  const chat = (await (await fetch(`${server()}/v1/channels/rooms/${call.room}/chat?since=earliest`)).json()) as { messages: { data: { from: string } }[] };
  expect(chat.messages.map(({ data }) => data.from)).toContain(id);
  await page.context().close();
});

test('switch: data falls back from the media connection', async ({ browser }) => {
  const proxy = await cuttableProxy(server());
  const context = await browser.newContext();
  await context.addInitScript(() => {
    const { createDataChannel } = RTCPeerConnection.prototype;
    const opened: RTCDataChannel[] = [];
    Object.assign(window, { closeSession: () => opened.filter(({ label }) => label === 'millrace').forEach((channel) => channel.close()) });
    RTCPeerConnection.prototype.createDataChannel = function (...what) {
      const channel = createDataChannel.apply(this, what);
      opened.push(channel);
      return channel;
    };
  });
  const room = uniqueRoom();
  const pages = [await openBlankPage(context, server()), await openBlankPage(context, proxy.url)] as const;
  const ids: string[] = [];
  const sessions = async (): Promise<number> => Number(/millrace_connections\{transport="data_channel"\} (\d+)/.exec(await (await fetch(`${server()}/metrics`)).text())?.[1]);
  const before = await sessions();
  for (const page of pages) ids.push(await join(page, room, { topology: 'switch' }));
  const call = { room, pages: [...pages], ids };
  await expectAllVideo(call);
  await expect.poll(sessions, { message: 'one session per participant' }).toBe(before + 2);
  await sendAll(pages, 50);
  await expectAllData(call, 50);
  // All other connections of the second page are cut, and more messages are sent than the channel accepts at once.
  proxy.cut();
  const began = Date.now();
  await sendAll(pages, 3_000, 50);
  await expectAllData(call, 3_050);
  console.log(JSON.stringify({ rooms: 'data beside media', messages: 6_000, all_came_ms: Date.now() - began }));
  proxy.heal();
  // The data channel session of the second page ends while messages are in transit.
  await sendAll(pages, 500, 3_050);
  await pages[1].evaluate(() => (window as unknown as { closeSession(): void }).closeSession());
  await sendAll(pages, 500, 3_550);
  await expectAllData(call, 4_050);
  await expect.poll(sessions).toBe(before + 1);
  expect(await Promise.all(pages.map((page) => page.evaluate(() => window.pageState.gaps)))).toEqual([0, 0]);
  proxy.stop();
  await context.close();
});

test('cut signals arrive later without leaving', async ({ browser }) => {
  const proxy = await cuttableProxy(server());
  const context = await browser.newContext();
  const room = uniqueRoom();
  const [near, far, late] = [await openBlankPage(context, server()), await openBlankPage(context, proxy.url), await openBlankPage(context, server())];
  const [nearId, farId] = [await join(near, room, { topology: 'mesh' }), await join(far, room, {})];
  await expectAllVideo({ room, pages: [near, far], ids: [nearId, farId] });
  proxy.cut();
  const before = await frames(near, farId);
  const lateId = await join(late, room, {});
  await expect.poll(() => late.evaluate(() => Object.keys(window.pageState.first))).toEqual([nearId]);
  await expect.poll(() => frames(near, farId), { message: 'video does not depend on signals' }).toBeGreaterThan(before + 20);
  expect(await far.evaluate(() => window.pageState.room.state.participants.length), 'it has no news').toBe(2);
  const healed = Date.now();
  proxy.heal();
  await expectAllVideo({ room, pages: [near, far, late], ids: [nearId, farId, lateId] });
  console.log(JSON.stringify({ rooms: 'signals cut', healed_to_seen_ms: Date.now() - healed }));
  expect(await ended(far)).toBeUndefined();
  expect((await links(near)).filter((line) => line.includes(farId.slice(0, 6)) && line.endsWith(' connected')).length, 'one link, created once').toBe(1);
  proxy.stop();
  await context.close();
});

test('a broken path is restored without leaving', async ({ browser }) => {
  const context = await browser.newContext();
  const room = uniqueRoom();
  const pages = [await openBlankPage(context, server()), await openBlankPage(context, server())] as const;
  const [one, other] = pages;
  const boxes = [await middlebox(one), await middlebox(other)];
  const ids = [await join(one, room, { topology: 'p2p' }), await join(other, room, {})] as const;
  const call = { room, pages: [...pages], ids: [...ids] };
  await expectAllVideo(call);
  expect(boxes.reduce((passed, box) => passed + box.passed(), 0), 'all packets pass the middlebox').toBeGreaterThan(50);
  await sendAll(pages, 50);
  const cut = Date.now();
  for (const box of boxes) box.cut();
  await expect.poll(async () => (await links(other)).join(), { timeout: 60_000 }).toMatch(/disconnected|failed/);
  const noticed = Date.now();
  await sendAll(pages, 50, 50);
  const stopped = await frames(other, ids[0]);
  const healed = Date.now();
  for (const box of boxes) box.heal();
  await expect.poll(() => frames(other, ids[0]), { timeout: 60_000 }).toBeGreaterThan(stopped + 30);
  const moving = Date.now();
  await expectAllData(call, 100);
  console.log(JSON.stringify({ rooms: 'path cut', noticed_ms: noticed - cut, healed_to_moving_ms: moving - healed }));
  expect([await ended(one), await ended(other)]).toEqual([undefined, undefined]);
  expect(await one.evaluate(() => window.pageState.room.id)).toBe(ids[0]);
  boxes.forEach((box) => box.stop());
  await context.close();
});

test('tree: killed parents and root are replaced', async ({ browser }) => {
  const call = await meet(browser, 7, 'tree', false);
  const { pages, ids, room } = call;
  const state = () => pages[0]!.evaluate(() => window.pageState.room.state);
  const readers = async () => ((await (await fetch(`${server()}/v1/presence/rooms/${room}/data`)).json()) as { count: number }).count;
  const { parents = {} } = await state();
  expect(Object.keys(parents).length, 'all but the root').toBe(6);
  expect(parents[ids[0]!]).toBeUndefined();
  await expect.poll(readers, { timeout: 40_000, message: 'only the root reads the channel' }).toBe(1);
  await sendAll(pages, 40);
  await expectAllData(call, 40);
  expect(await readers(), 'data came through the tree').toBe(1);

  const victim = ids.findIndex((id, i) => i > 0 && Object.values(parents).includes(id));
  const orphans = ids.filter((id) => parents[id] === ids[victim]);
  expect(orphans.length).toBeGreaterThan(0);
  // Records when all orphans have another parent, and whether the old parent was still a participant then.
  await pages[0]!.evaluate(
    ([orphans, victim]) => {
      const { room } = window.pageState;
      room.on('state', ({ parents = {}, participants }) => {
        if (orphans.every((id) => parents[id] !== victim)) window.replaced ??= { at: Date.now(), isThere: participants.some(({ id }) => id === victim) };
      });
    },
    [orphans, ids[victim]!] as const,
  );
  const crash = async (page: Page): Promise<number> => {
    const session = await page.context().newCDPSession(page);
    void session.send('Page.crash').catch(() => {});
    return Date.now();
  };
  const killed = await crash(pages[victim]!);
  // The root keeps sending before the failure is detected.
  await pages[0]!.evaluate(
    () =>
      new Promise<void>((done) => {
        let number = 40;
        const timer = setInterval(() => {
          window.pageState.room.send({ number: number++, sent: performance.timeOrigin + performance.now() });
          if (number < 140) return;
          clearInterval(timer);
          done();
        }, 50);
      }),
  );
  const left = pages.flatMap((page, i) => (i === victim ? [] : [{ page, id: ids[i]! }]));
  const delays: Record<string, number> = {};
  for (const { page, id } of left.filter(({ id }) => id !== ids[0])) {
    await expect.poll(async () => (await receivedNumbers(page))[ids[0]!]?.length, { timeout: 40_000 }).toBe(140);
    expect((await receivedNumbers(page))[ids[0]!], 'each once, in order').toEqual(Array.from({ length: 140 }, (_, i) => i));
    delays[id] = await page.evaluate(() => Math.round(Math.max(...window.pageState.data.map(({ data, at }) => at - ((data as { sent?: number }).sent ?? at)))));
  }
  await expect.poll(() => pages[0]!.evaluate(() => window.replaced), { timeout: 40_000 }).toMatchObject({ isThere: true });
  const replaced = (await pages[0]!.evaluate(() => window.replaced))!.at;
  await expect.poll(readers, { timeout: 40_000, message: 'the others have a parent again' }).toBe(1);
  const of = (orphaned: boolean): number[] => Object.entries(delays).flatMap(([id, ms]) => (orphans.includes(id) === orphaned ? [ms] : []));
  console.log(JSON.stringify({ rooms: 'tree', peers: 7, orphans: orphans.length, orphan_longest_delay_ms: of(true), others_longest_delay_ms: of(false), parent_replaced_ms: replaced - killed, links_again_ms: Date.now() - killed }));
  for (const ms of of(true)) expect(ms, 'the gap is repaired from history').toBeLessThan(10_000);

  // After the root is killed, another root reads the channel, and data flows down the tree again.
  const last = left.filter(({ id }) => id !== ids[0]).map(({ page }) => page);
  const beheaded = await crash(pages[0]!);
  const parentsOf = (page: Page) => page.evaluate(() => window.pageState.room.state.parents ?? {});
  await expect.poll(async () => Object.values(await parentsOf(last[0]!)).includes(ids[0]!), { timeout: 40_000, message: 'another root' }).toBe(false);
  const rooted = Date.now();
  await last[0]!.evaluate(() => Array.from({ length: 20 }, (_, number) => window.pageState.room.send({ number })));
  const [sender] = left.flatMap(({ page, id }) => (page === last[0] ? [id] : []));
  for (const page of last.slice(1)) await expect.poll(async () => (await receivedNumbers(page))[sender!]?.slice(-20)).toEqual(Array.from({ length: 20 }, (_, i) => i));
  await expect.poll(readers, { timeout: 40_000, message: 'only the new root reads the channel' }).toBe(1);
  console.log(JSON.stringify({ rooms: 'tree without its root', root_replaced_ms: rooted - beheaded, links_again_ms: Date.now() - beheaded }));
  await last[0]!.context().close();
});

test('tree: video continues after a parent is killed', async ({ browser }) => {
  const alone = await serve(undefined, ['--set', 'rooms.children_max=1']);
  const context = await browser.newContext();
  const room = uniqueRoom();
  const [pages, ids]: [Page[], string[]] = [[], []];
  for (let i = 0; i < 3; i++) {
    pages.push(await openBlankPage(context, alone.url));
    ids.push(await join(pages[i]!, room, { topology: 'tree', name: `peer ${i}` }));
  }
  const [root, middle, leaf] = pages as [Page, Page, Page];
  const seen = (page: Page) => page.evaluate(() => Object.keys(window.pageState.first));
  const parents = () => root.evaluate(() => window.pageState.room.state.parents);
  // The third participant has its parent once it has joined. The root learns it a moment later.
  await expect.poll(parents, { message: 'a chain of three' }).toEqual({ [ids[1]!]: ids[0], [ids[2]!]: ids[1] });
  for (const page of [middle, leaf]) await expect.poll(() => seen(page), { timeout: 30_000, message: 'the root alone' }).toEqual([ids[0]]);
  expect(await seen(root)).toEqual([]);
  const first = await leaf.evaluate((id) => Math.round(window.pageState.first[id]!), ids[0]!);
  const session = await context.newCDPSession(middle);
  const killed = Date.now();
  void session.send('Page.crash').catch(() => {});
  await expect.poll(parents, { timeout: 40_000, message: 'another parent' }).toMatchObject({ [ids[2]!]: ids[0] });
  const shown = () => leaf.evaluate((id) => window.pageState.streams[id]!.getVideoTracks().some(({ readyState, muted }) => readyState === 'live' && !muted) && performance.now() - window.pageState.moved[id]!.last < 200, ids[0]!);
  await expect.poll(shown, { timeout: 40_000, message: 'the video moves again' }).toBe(true);
  console.log(JSON.stringify({ rooms: 'pictures in a tree', depth: 2, first_at_leaf_ms: first, moves_again_ms: Date.now() - killed }));
  await context.close();
  await alone.stop();
});

test('auto: switches topology without interrupting video', async ({ browser }) => {
  const call = await meet(browser, 2, 'auto');
  const [one, two] = call.pages as [Page, Page];
  await expectAllVideo(call);
  const topology = (page: Page) => page.evaluate(() => window.pageState.room.state.topology);
  const linked = async (page: Page) => (await quality(page)).links.map(({ to }) => to).sort();
  expect(await topology(one)).toBe('mesh');
  await sendAll([one, two], 20);
  // Baseline: the longest interval without a new frame on this machine while the topology does not change.
  await longestFreezes([one, two], call.ids);
  const calmFrom = await frames(one, call.ids[1]!);
  await expect.poll(() => frames(one, call.ids[1]!)).toBeGreaterThan(calmFrom + 60);
  const calm_ms = await longestFreezes([one, two], call.ids);
  const moves: Record<string, number[]> = {};
  const third = await openBlankPage(one.context(), server());
  const thirdId = await join(third, call.room, {});
  await expectAllVideo({ ...call, pages: [one, two, third], ids: [...call.ids, thirdId] });
  expect(await topology(two)).toBe('switch');
  for (const page of [one, two, third]) await expect.poll(() => linked(page), { timeout: 30_000 }).toEqual(['switch']);
  await sendAll([one, two], 20, 20);
  const passed = await frames(one, 'switch');
  await expect.poll(() => frames(one, 'switch')).toBeGreaterThan(passed + 30);
  moves['mesh->switch'] = await longestFreezes([one, two], call.ids);
  const left = Date.now();
  await third.evaluate(() => window.pageState.room.leave());
  await expect.poll(() => topology(one), { timeout: 40_000 }).toBe('mesh');
  const back = Date.now() - left;
  await expect.poll(() => linked(one), { timeout: 30_000 }).toEqual([call.ids[1]]);
  await sendAll([one, two], 20, 40);
  const before = await frames(one, call.ids[1]!);
  await expect.poll(() => frames(one, call.ids[1]!)).toBeGreaterThan(before + 30);
  await expectAllData(call, 60);
  moves['switch->mesh'] = await longestFreezes([one, two], call.ids);
  console.log(JSON.stringify({ rooms: 'auto', back_to_mesh_ms: back, calm_longest_still_ms: calm_ms, longest_still_ms: moves }));
  for (const [move, still] of Object.entries(moves)) {
    for (const [i, ms] of still.entries()) expect(ms, `${move}: without a new frame`).toBeLessThan(Math.max(1_000, 3 * calm_ms[i]!));
  }
  await one.context().close();
});

test('participants rejoin after a server restart', async ({ browser }) => {
  let own = await serve();
  const context = await browser.newContext();
  const room = uniqueRoom();
  try {
    const [pages, ids]: [Page[], string[]] = [[], []];
    for (let i = 0; i < 3; i++) pages.push(await openBlankPage(context, own.url));
    for (const [i, page] of pages.entries()) ids.push(await join(page, room, { topology: 'switch', name: `peer ${i}` }));
    await expectAllVideo({ room, pages, ids });
    await own.kill();
    own = await serve(new URL(own.url).host);
    const started = Date.now();
    const again = () => Promise.all(pages.map((page) => page.evaluate(() => window.pageState.rejoined.at(-1))));
    await expect.poll(async () => (await again()).every(Boolean), { timeout: 60_000 }).toBe(true);
    const rejoined = Date.now();
    const stays = (await again()).map((stay) => stay!);
    expect(stays.map(({ was }) => was)).toEqual(ids);
    const call = { room, pages, ids: stays.map(({ id }) => id) };
    await expectAllVideo(call);
    console.log(JSON.stringify({ rooms: 'server killed', rejoined_ms: rejoined - started, seen_again_ms: Date.now() - started }));
    const state = await pages[0]!.evaluate(() => window.pageState.room.state);
    expect([state.topology, state.participants.map(({ name }) => name).sort()]).toEqual(['switch', ['peer 0', 'peer 1', 'peer 2']]);
    await sendAll(pages, 20);
    await expectAllData(call, 20);
    for (const page of pages) expect(await ended(page)).toBeUndefined();
  } finally {
    await context.close();
    await own.stop();
  }
});
