import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { expect, test } from 'vitest';

/**
 * Returns the bytes that a page loads: bundled, minified, gzip -9. Requires `npm run build`, because the built package
 * is measured.
 */
async function size(source: string): Promise<number> {
  const { outputFiles } = await build({
    stdin: { contents: source, resolveDir: new URL('../dist', import.meta.url).pathname },
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    write: false,
    logLevel: 'error',
    // The application has these anyway.
    external: ['react', 'svelte', 'vue'],
  });
  return gzipSync(outputFiles[0]!.contents, { level: 9 }).length;
}

test.each([
  ['core and WebSocket', `import { client } from './core.js'; import { websocket } from './transports/websocket.js'; globalThis.mr = client('/', [websocket]);`, 6 * 1024 + 896],
  ['a keyed state, with core and WebSocket', `import { client } from './core.js'; import { state } from './state.js'; import { websocket } from './transports/websocket.js'; globalThis.cars = state(client('/', [websocket]), 'fleet');`, 7 * 1024 + 512],
  ['a roster, with core and WebSocket', `import { client } from './core.js'; import { roster } from './roster.js'; import { websocket } from './transports/websocket.js'; globalThis.present = roster(client('/', [websocket]), 'chat');`, 7 * 1024 + 640],
  ['a room, with all transports', `import { joinRoom } from './room/index.js'; globalThis.joinRoom = joinRoom;`, 24 * 1024 + 512],
  ['files, with core and WebSocket', `import { client } from './core.js'; import { receiveFile, sendFile } from './file.js'; import { websocket } from './transports/websocket.js'; globalThis.files = [client('/', [websocket]), sendFile, receiveFile];`, 9 * 1024],
  ['a kit, with core and WebSocket', `import { client } from './core.js'; import { openKit } from './kit.js'; import { websocket } from './transports/websocket.js'; globalThis.kit = openKit(client('/', [websocket]));`, 8 * 1024],
  ['the latency, with core and WebSocket', `import { client } from './core.js'; import { latency } from './latency.js'; import { websocket } from './transports/websocket.js'; globalThis.mr = latency(client('/', [websocket]));`, 7 * 1024 + 768],
  ['a shared connection, with all transports', `import { shared } from './share/index.js'; globalThis.mr = shared('/');`, 18 * 1024 + 768],
  ['React, the newest message, without the core', `import { MillraceProvider, useLive } from './react.js'; globalThis.parts = { MillraceProvider, useLive };`, 1024 + 512],
  ['React, every hook, without the core', `import * as parts from './react.js'; globalThis.parts = parts;`, 3 * 1024 + 512],
  ['Svelte, every function, without the core', `import * as parts from './svelte.js'; globalThis.parts = parts;`, 3 * 1024 + 512],
  ['Vue, every composable, without the core', `import * as parts from './vue.js'; globalThis.parts = parts;`, 3 * 1024 + 640],
  ['all transports', `import { millrace } from './index.js'; globalThis.mr = millrace('/');`, 12 * 1024],
])('complaint 11: %s stay small', async (_, source, limit) => {
  const bytes = await size(source);
  expect(bytes).toBeGreaterThan(1000);
  expect(bytes).toBeLessThanOrEqual(limit);
});

test('complaint 11: unused code is not bundled', async () => {
  expect(await size(`import './index.js';`)).toBeLessThan(50);
  expect(await size(`import { MillraceError } from './index.js'; console.log(MillraceError);`)).toBeLessThan(500);
});
