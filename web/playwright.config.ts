import { availableParallelism } from 'node:os';
import { defineConfig } from '@playwright/test';
import { camera } from './tests/camera.ts';
import './tests/polling.ts';

// Each worker has a server of its own (tests/setup.ts), so tests that run at the same time share nothing.
const own = process.env[`TEST_SERVER_URL_${process.env.TEST_PARALLEL_INDEX}`];
if (own) process.env.MILLRACE_URL = own;

/** Tests with video or audio: they encode and decode it, so one runs at a time, beside one of the others. */
const CALLS = ['auto.spec.ts', 'composite.spec.ts', 'more.spec.ts', 'room.spec.ts', 'room-nodes.spec.ts', 'rooms.spec.ts', 'seat.spec.ts', 'simulcast.spec.ts', 'steering.spec.ts', 'tcp.spec.ts', 'ui-rooms.spec.ts', 'whip.spec.ts'];

const FIREFOX = '**/tests/firefox/**';

export default defineConfig({
  testDir: 'tests',
  outputDir: 'test-results',
  globalSetup: './tests/setup.ts',
  workers: Math.min(2, availableParallelism()),
  // Limits end tests that hang; beside a busy machine a test takes three times as long as alone.
  timeout: 180_000,
  expect: { timeout: 20_000 },
  forbidOnly: !!process.env.CI,
  retries: 1,
  reporter: [['list'], ['./tests/flaky.ts']],
  use: {
    // A picture of a whole page takes seconds on a busy machine.
    actionTimeout: 15_000,
    navigationTimeout: 30_000,
    trace: 'off',
    // The full browser: the headless shell draws no map. SwiftShader: WebGL without a graphics card.
    // The same for all tests: another value would start another browser.
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      args: ['--no-sandbox', '--enable-unsafe-swiftshader', ...camera()],
    },
  },
  projects: [
    { name: 'calls', testMatch: CALLS, testIgnore: FIREFOX, workers: 1 },
    { name: 'pages', testMatch: '*.spec.ts', testIgnore: [...CALLS, FIREFOX] },
    { name: 'firefox', testDir: 'tests/firefox', workers: 1 },
    { name: 'screenshots', testMatch: 'screenshots.ts' },
  ],
});
