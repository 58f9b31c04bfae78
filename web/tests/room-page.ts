// Pages that join a room: real tabs of one Chromium whose camera is a file with moving video.
import { createSocket, type RemoteInfo, type Socket as Datagrams } from 'node:dgram';
import { createRequire } from 'node:module';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { fileURLToPath } from 'node:url';
import type { BrowserContext, Page } from '@playwright/test';
import type { joinRoom, JoinOptions, Quality, Room, VideoChoice, VideoState } from '../../sdk/typescript/src/room/index.ts';

export { camera } from './camera.ts';

const sdk = new URL('../../sdk/typescript/', import.meta.url);

/** State that a page records about its room. */
export interface PageState {
  room: Room;
  /** Stream that the page sends; `streams` has those of the remote participants. */
  stream: MediaStream | undefined;
  streams: Record<string, MediaStream>;
  /** Time from the call of `joinRoom` to the first frame of each remote participant, ms. */
  first: Record<string, number>;
  data: { from: string; data: unknown; at: number }[];
  chat: string[];
  links: string[];
  speaker: string | undefined;
  gaps: number;
  ended: string | undefined;
  rejoined: { id: string; was: string }[];
  /** Sizes and frame rates of the own video, and when they began. */
  sizes: (VideoState & { at: number })[];
  /** Time of the last video frame of each remote participant, and its longest interval without a new frame, ms. */
  moved: Record<string, { last: number; longest: number }>;
}

declare global {
  interface Window {
    joinRoom: typeof joinRoom;
    pageState: PageState;
    /** Sets the volume of this page's tone, 0 to 1. */
    voice: (level: number) => void;
    /** Analyzer of the received audio. */
    ear?: AnalyserNode;
    /**
     * Tree only: the time at which the orphans had another parent, and whether the old parent was still listed then.
     */
    replaced?: { at: number; isThere: boolean };
  }
}

let script: Promise<string> | undefined;

/** Bundles the room module from its sources for a page to load. */
function bundle(): Promise<string> {
  script ??= (async () => {
    const { build } = createRequire(fileURLToPath(new URL('package.json', sdk)))('esbuild') as {
      build(options: object): Promise<{ outputFiles: { text: string }[] }>;
    };
    const contents = `import { joinRoom } from './src/room/index.ts'; window.joinRoom = joinRoom;`;
    const { outputFiles } = await build({
      stdin: { contents, resolveDir: fileURLToPath(sdk) },
      bundle: true,
      format: 'iife',
      target: 'es2022',
      write: false,
    });
    return outputFiles[0]!.text;
  })();
  return script;
}

/** Opens a page of the server's origin with `joinRoom` loaded. */
export async function openBlankPage(context: BrowserContext, server: string): Promise<Page> {
  const page = await context.newPage();
  await page.goto(`${server}/healthz`);
  await page.addScriptTag({ content: await bundle() });
  return page;
}

export interface Joining extends Pick<JoinOptions, 'topology' | 'role' | 'transports' | 'rtc' | 'audioCodec'> {
  readonly name?: string;
  /** Sends the camera's video. Default: true. */
  readonly video?: boolean;
  /** Sends video of a canvas of this size, which changes all the time, instead of the camera's video. */
  readonly canvas?: readonly [width: number, height: number];
  /** Sends video of 640x480 in this color, with a line that moves, instead of the camera's video. */
  readonly color?: string;
  /**
   * Also sends a tone of this frequency in Hz (`true`: the default frequency). The tone is silent until `voice` is
   * called.
   */
  readonly tone?: boolean | number;
  /** Size and frame rate of the video, steered by statistics. */
  readonly choice?: VideoChoice;
}

/** Joins the room and returns the participant's id. */
export const join = (page: Page, room: string, joining: Joining): Promise<string> =>
  page.evaluate(
    async ([room, { video = true, canvas, color, tone, choice, ...options }]) => {
      const painted = ([width, height]: readonly [number, number]): MediaStream => {
        const sheet = Object.assign(document.createElement('canvas'), { width, height });
        const pen = sheet.getContext('2d')!;
        const chance = (max: number): number => Math.random() * max;
        setInterval(() => {
          for (let i = 0; i < 40; i++) {
            pen.fillStyle = `hsl(${chance(360)} 70% 50%)`;
            pen.fillRect(chance(width), chance(height), width / 12, height / 12);
          }
        }, 66);
        return sheet.captureStream(15);
      };
      const colored = (color: string): MediaStream => {
        const sheet = Object.assign(document.createElement('canvas'), { width: 640, height: 480 });
        const pen = sheet.getContext('2d')!;
        let frame = 0;
        setInterval(() => {
          pen.fillStyle = color;
          pen.fillRect(0, 0, 640, 480);
          pen.fillStyle = '#fff';
          pen.fillRect(0, (frame++ * 4) % 160, 640, 4);
        }, 66);
        return sheet.captureStream(15);
      };
      const stream = color ? colored(color) : canvas ? painted(canvas) : video ? await navigator.mediaDevices.getUserMedia({ video: { width: 320, height: 240, frameRate: 30 } }) : undefined;
      if (tone) {
        const audio = new AudioContext();
        const [source, volume, out] = [audio.createOscillator(), audio.createGain(), audio.createMediaStreamDestination()];
        window.voice = (level) => (volume.gain.value = level);
        window.voice(0);
        if (typeof tone === 'number') source.frequency.value = tone;
        source.connect(volume).connect(out);
        source.start();
        stream?.addTrack(out.stream.getAudioTracks()[0]!);
      }
      const began = performance.now();
      const joined = await window.joinRoom(location.origin, room, { ...options, ...(stream && { stream }), ...(choice && { video: choice }) });
      const pageState: PageState = (window.pageState = { room: joined, stream, streams: {}, first: {}, data: [], chat: [], links: [], speaker: undefined, gaps: 0, ended: undefined, rejoined: [], moved: {}, sizes: [] });
      joined.on('video', (state) => pageState.sizes.push({ ...state, at: performance.timeOrigin + performance.now() }));
      // One video element per remote participant, as in an application.
      const videos = new Map<string, HTMLVideoElement>();
      joined.on('track', ({ participant, stream }) => {
        pageState.streams[participant] = stream;
        let video = videos.get(participant);
        if (!video) {
          const made = (video = document.createElement('video'));
          Object.assign(made, { muted: true, autoplay: true, width: 160 });
          videos.set(participant, made);
          document.body.append(made);
          made.requestVideoFrameCallback((now) => (pageState.first[participant] ??= now - began));
          // In a hidden tab the frame callback runs only once a second. The element's frame count is always current.
          let given = 0;
          setInterval(() => {
            const { totalVideoFrames } = made.getVideoPlaybackQuality();
            if (totalVideoFrames === given) return;
            given = totalVideoFrames;
            if (!given) return;
            const now = performance.now();
            const moved = (pageState.moved[participant] ??= { last: now, longest: 0 });
            moved.longest = Math.max(moved.longest, now - moved.last);
            moved.last = now;
          }, 20);
        }
        if (video.srcObject !== stream) video.srcObject = stream;
      });
      joined.on('left', ({ id }) => {
        videos.get(id)?.remove();
        videos.delete(id);
      });
      joined.on('rejoined', ({ id, was }) => pageState.rejoined.push({ id, was }));
      joined.on('data', ({ from, data }) => pageState.data.push({ from, data, at: performance.timeOrigin + performance.now() }));
      joined.on('chat', ({ text }) => pageState.chat.push(text));
      joined.on('speaker', (id) => (pageState.speaker = id));
      joined.on('link', ({ to, state }) => pageState.links.push(`${Math.round(performance.now() - began)} ms: ${to.slice(0, 6)} ${state}`));
      joined.on('gap', ({ count }) => (pageState.gaps += count));
      joined.on('end', (cause) => (pageState.ended = String(cause)));
      return joined.id;
    },
    [room, joining] as const,
  );

/** Sends `count` numbered messages from each page, starting with number `from`. */
export const sendAll = (pages: readonly Page[], count: number, from = 0): Promise<void[]> =>
  Promise.all(
    pages.map((page) =>
      page.evaluate(
        ([count, from]) => {
          for (let i = 0; i < count; i++) window.pageState.room.send({ number: from + i });
        },
        [count, from] as const,
      ),
    ),
  );

/** Returns the received numbers of each sender, in the order of arrival. */
export const receivedNumbers = (page: Page): Promise<Record<string, number[]>> =>
  page.evaluate(() => {
    const receivedNumbers: Record<string, number[]> = {};
    for (const { from, data } of window.pageState.data) (receivedNumbers[from] ??= []).push((data as { number: number }).number);
    return receivedNumbers;
  });

/** Returns for each page the longest interval without a new video frame from any of `ids` since the last call, ms. */
export async function longestFreezes(pages: readonly Page[], ids: readonly string[]): Promise<number[]> {
  const still = (ids: readonly string[]): number => {
    const of = Object.entries(window.pageState.moved).flatMap(([id, moved]) => (ids.includes(id) ? [moved] : []));
    const longest = Math.max(...of.map(({ last, longest }) => Math.max(longest, performance.now() - last)));
    for (const moved of of) moved.longest = 0;
    return Math.round(longest);
  };
  return Promise.all(pages.map((page) => page.evaluate(still, ids)));
}

/** Statistics of received audio that a browser counts. Source: W3C "Identifiers for WebRTC's Statistics API". */
export type AudioStats = Required<Pick<RTCInboundRtpStreamStats, 'packetsReceived' | 'jitterBufferDelay' | 'jitterBufferEmittedCount'>>;

/** Returns a reader of the statistics of each received audio stream. Call before the page joins. */
export async function audioStats(page: Page): Promise<() => Promise<AudioStats[]>> {
  const made = await page.evaluateHandle(() => {
    const made: RTCPeerConnection[] = [];
    window.RTCPeerConnection = class extends RTCPeerConnection {
      constructor(configuration?: RTCConfiguration) {
        super(configuration);
        made.push(this);
      }
    };
    return made;
  });
  return () =>
    made.evaluate(async (made) => {
      const reports = await Promise.all(made.filter(({ connectionState }) => connectionState !== 'closed').map((connection) => connection.getStats()));
      return reports.flatMap((report) => [...report.values()]).filter(({ type, kind }) => type === 'inbound-rtp' && kind === 'audio');
    });
}

/**
 * Returns the level of each tone in the stream that the page receives from participant `of`, dB relative to full scale.
 */
export const tones = (page: Page, of: string, hz: readonly number[]): Promise<number[]> =>
  page.evaluate(
    ([of, hz]) => {
      if (!window.ear) {
        const audio = new AudioContext();
        window.ear = new AnalyserNode(audio, { fftSize: 8192, smoothingTimeConstant: 0 });
        audio.createMediaStreamSource(window.pageState.streams[of]!).connect(window.ear);
      }
      const { ear } = window;
      const levels = new Float32Array(ear.frequencyBinCount);
      ear.getFloatFrequencyData(levels);
      const step = ear.context.sampleRate / ear.fftSize;
      return hz.map((hz) => Math.max(...levels.subarray(Math.round(hz / step) - 1, Math.round(hz / step) + 2)));
    },
    [of, hz] as const,
  );

export const quality = (page: Page): Promise<Quality> => page.evaluate(() => window.pageState.room.quality());

/**
 * Puts a UDP path of adjustable bandwidth between the server and a page. Datagrams to the page are queued; a datagram
 * that would wait longer than 200 ms is dropped.
 */
export async function throttledPath(page: Page): Promise<{ carry(kbps: number): void; stop(): void }> {
  const WAIT_MAX = 200;
  const sockets: Datagrams[] = [];
  const fronts = new Map<string, Promise<number>>();
  let [carried, freeAt, stopped] = [Infinity, 0, false];
  const bound = async (): Promise<Datagrams> => {
    const socket = createSocket('udp4');
    sockets.push(socket);
    await new Promise<void>((resolve) => socket.bind(0, '127.0.0.1', resolve));
    return socket;
  };
  const front = async (address: string, port: number): Promise<number> => {
    const [near, far] = [await bound(), await bound()];
    let to: RemoteInfo | undefined;
    near.on('message', (data, from) => {
      to = from;
      far.send(data, port, address);
    });
    far.on('message', (data) => {
      const now = performance.now();
      // Time in the queue, without the time of the transmission, so that a slow path carries large datagrams, too.
      const waits = Math.max(freeAt - now, 0);
      if (!to || waits > WAIT_MAX) return;
      const at = (freeAt = now + waits + (data.length * 8) / carried);
      const { port, address } = to;
      if (at - now < 1) near.send(data, port, address);
      else setTimeout(() => stopped || near.send(data, port, address, () => {}), at - now);
    });
    return near.address().port;
  };
  await page.exposeFunction('through', (address: string, port: number) => {
    const key = `${address} ${port}`;
    if (!fronts.has(key)) fronts.set(key, front(address, port));
    return fronts.get(key);
  });
  await page.evaluate(() => {
    const { through } = window as unknown as { through(address: string, port: number): Promise<number> };
    const set: (this: RTCPeerConnection, description: RTCSessionDescriptionInit) => Promise<void> = RTCPeerConnection.prototype.setRemoteDescription;
    RTCPeerConnection.prototype.setRemoteDescription = async function (description: RTCSessionDescriptionInit) {
      let sdp = description.sdp ?? '';
      for (const [line, head, address, port] of sdp.matchAll(/(a=candidate:\S+ \d udp \d+ )(\d+\.\d+\.\d+\.\d+) (\d+)(?= typ host)/gi))
        sdp = sdp.replaceAll(line, `${head}127.0.0.1 ${await through(address!, Number(port))}`);
      return set.call(this, { type: description.type, sdp });
    };
  });
  const stop = (): void => {
    stopped = true;
    sockets.forEach((socket) => socket.close());
  };
  return { carry: (kbps) => void (carried = kbps), stop };
}

/**
 * Puts a path of adjustable bandwidth between a page and the TURN relay. Datagrams from the page are queued; a datagram
 * that would wait longer than 200 ms is dropped. Call before the page joins, and join with the topology `relay`.
 */
export async function throttledRelay(page: Page): Promise<{ carry(kbps: number): void; stop(): void }> {
  const WAIT_MAX = 200;
  const sockets: Datagrams[] = [];
  let [carried, freeAt, stopped] = [Infinity, 0, false];
  const bound = async (): Promise<Datagrams> => {
    const socket = createSocket('udp4');
    sockets.push(socket);
    await new Promise<void>((resolve) => socket.bind(0, '127.0.0.1', resolve));
    return socket;
  };
  const front = async (relay: number): Promise<number> => {
    const near = await bound();
    const fars = new Map<string, Promise<Datagrams>>();
    // The page sends from any address of this machine.
    const farOf = ({ address, port }: RemoteInfo): Promise<Datagrams> => {
      const known = fars.get(`${address} ${port}`);
      if (known) return known;
      const made = bound().then((far) => far.on('message', (data) => stopped || near.send(data, port, address, () => {})));
      fars.set(`${address} ${port}`, made);
      return made;
    };
    near.on('message', (data, from) => {
      const now = performance.now();
      const waits = Math.max(freeAt - now, 0);
      if (waits > WAIT_MAX) return;
      const at = (freeAt = now + waits + (data.length * 8) / carried);
      void farOf(from).then((far) => setTimeout(() => stopped || far.send(data, relay, '127.0.0.1', () => {}), at - now));
    });
    return near.address().port;
  };
  const fronts = new Map<string, Promise<number>>();
  await page.route('**/participants', async (route) => {
    const response = await route.fetch();
    const joined = (await response.json()) as { ice_servers?: { urls: string | string[] }[] };
    for (const server of joined.ice_servers ?? []) {
      const [, port] = [server.urls].flat().map((url) => /^turn:127\.0\.0\.1:(\d+)\?transport=udp$/.exec(url) ?? []).find(([url]) => url) ?? [];
      if (!port) throw new Error(`no TURN server over UDP among ${JSON.stringify(server.urls)}`);
      if (!fronts.has(port)) fronts.set(port, front(Number(port)));
      server.urls = `turn:127.0.0.1:${await fronts.get(port)}?transport=udp`;
    }
    await route.fulfill({ response, json: joined });
  });
  const stop = (): void => {
    stopped = true;
    sockets.forEach((socket) => socket.close());
  };
  return { carry: (kbps) => void (carried = kbps), stop };
}

/** Starts a TCP proxy to the server that can cut all its connections at once. */
export async function cuttableProxy(server: string): Promise<{ url: string; cut(): void; heal(): void; stop(): void }> {
  const open = new Set<Socket>();
  let isCut = false;
  const target = new URL(server);
  const proxy = createServer((near) => {
    if (isCut) return void near.destroy();
    const far = connect(Number(target.port), target.hostname);
    for (const [one, other] of [[near, far], [far, near]] as const) {
      open.add(one);
      one.on('error', () => other.destroy()).on('close', () => (open.delete(one), other.destroy()));
      one.pipe(other);
    }
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`,
    cut() {
      isCut = true;
      for (const socket of open) socket.destroy();
    },
    heal: () => void (isCut = false),
    stop: () => void proxy.close(),
  };
}

/**
 * Puts a middlebox in front of a page. Its ports replace the page's own in the candidates that other peers receive, so
 * that all packets pass through the middlebox; it drops packets while it is cut. Each remote address has its own port
 * towards the page, as with a NAT.
 */
export async function middlebox(page: Page): Promise<{ cut(): void; heal(): void; stop(): void; passed: () => number }> {
  const sockets: Datagrams[] = [];
  const fronts = new Map<string, number>();
  let [isCut, passed] = [false, 0];
  const bind = async (address: string, fn: (data: Buffer, from: RemoteInfo) => void): Promise<Datagrams> => {
    const socket = createSocket('udp4');
    sockets.push(socket);
    socket.on('message', (data, from) => isCut || (passed++, fn(data, from)));
    await new Promise<void>((resolve) => socket.bind(0, address, resolve));
    return socket;
  };
  const front = async (address: string, port: number): Promise<number> => {
    const known = fronts.get(`${address}:${port}`);
    if (known) return known;
    const backs = new Map<string, Promise<Datagrams>>();
    const socket = await bind(address, (data, from) => {
      const key = `${from.address}:${from.port}`;
      if (!backs.has(key)) backs.set(key, bind(address, (answer) => socket.send(answer, from.port, from.address)));
      void backs.get(key)!.then((back) => back.send(data, port, address));
    });
    const own = socket.address().port;
    fronts.set(`${address}:${port}`, own);
    return own;
  };
  const CANDIDATE = /(candidate:\S+ \d udp \d+ )(\d+\.\d+\.\d+\.\d+) (\d+)( typ host)/gi;
  await page.route('**/signals', async (route) => {
    const body = route.request().postData() ?? '';
    const ports = new Map<string, number>();
    for (const [, , address, port] of body.matchAll(CANDIDATE)) ports.set(`${address} ${port}`, await front(address!, Number(port)));
    const nowhere = (_: string, head: string, tail: string): string => `${head}9${tail}`;
    const postData = body.replace(CANDIDATE, (_, head: string, address: string, port: string, tail: string) => `${head}${address} ${ports.get(`${address} ${port}`)}${tail}`)
      // Disables candidates that would bypass the middlebox: IPv6, TCP, host names and the server's relay.
      .replace(/(candidate:\S+ \d (?:udp \d+ (?:\S*:\S*|\S+\.local)|tcp \d+ \S+) )\d+( typ)/gi, nowhere)
      .replace(/(candidate:\S+ \d udp \d+ \S+ )\d+( typ (?:srflx|relay))/gi, nowhere);
    await route.continue({ postData });
  });
  return { cut: () => void (isCut = true), heal: () => void (isCut = false), stop: () => sockets.forEach((socket) => socket.close()), passed: () => passed };
}
