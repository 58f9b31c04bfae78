// The camera of every page: a file with moving video.
import { closeSync, openSync, renameSync, writeSync } from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';

/** A low frame rate: each frame is encoded once and decoded by every receiver, all on the processors of the tests. */
const [WIDTH, HEIGHT, FPS, SECONDS] = [320, 240, 15, 4];
const FILM = join(tmpdir(), `millrace-camera-${userInfo().uid}.y4m`);

/**
 * Writes the camera's video: noise and a moving bar, so that each frame differs from the previous one. The video loops
 * without a jump.
 */
export function film(): void {
  // Written under another name first, because a concurrent run of the tests may read the file.
  const path = `${FILM}.${process.pid}`;
  const file = openSync(path, 'w');
  writeSync(file, `YUV4MPEG2 W${WIDTH} H${HEIGHT} F${FPS}:1 Ip A1:1 C420jpeg\n`);
  const frames = FPS * SECONDS;
  let seed = 1;
  const chance = (): number => (seed = (seed * 1_103_515_245 + 12_345) & 0x7fffffff);
  const noise = Uint8Array.from({ length: WIDTH * HEIGHT }, () => 100 + ((chance() >> 16) & 31));
  for (let frame = 0; frame < frames; frame++) {
    const shift = Math.round((frame / frames) * WIDTH);
    const luma = new Uint8Array(WIDTH * HEIGHT);
    for (let y = 0; y < HEIGHT; y++) {
      for (let x = 0; x < WIDTH; x++) {
        const moved = (x + shift) % WIDTH;
        luma[y * WIDTH + x] = moved < 40 ? 235 : moved < 80 ? 30 : noise[y * WIDTH + moved]!;
      }
    }
    const chroma = new Uint8Array((WIDTH * HEIGHT) / 4).fill(128 + Math.round(60 * Math.sin((2 * Math.PI * frame) / frames)));
    writeSync(file, 'FRAME\n');
    for (const plane of [luma, chroma, chroma]) writeSync(file, plane);
  }
  closeSync(file);
  renameSync(path, FILM);
}

/**
 * Returns the flags of Chromium: the file is its camera, and pages connect over loopback addresses.
 * The flags never change, so that tests share a browser.
 */
export const camera = (): string[] => [
  '--use-fake-ui-for-media-stream',
  '--use-fake-device-for-media-stream',
  `--use-file-for-fake-video-capture=${FILM}`,
  '--disable-features=WebRtcHideLocalIpsWithMdns',
  '--autoplay-policy=no-user-gesture-required',
];
