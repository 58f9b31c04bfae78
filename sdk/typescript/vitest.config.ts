import { playwright } from '@vitest/browser-playwright';
import { defineConfig } from 'vitest/config';

// Two projects: Node, and the same client in a real Chromium (page and worker). CHROMIUM names another browser.
export default defineConfig({
  test: {
    fileParallelism: false,
    // A test that fails and then passes is flaky, not red; the second reporter names it.
    retry: 1,
    reporters: ['default', './tests/flaky.ts'],
    projects: [
      {
        extends: true,
        test: { name: 'node', environment: 'node', include: ['tests/*.test.ts'], testTimeout: 20_000, hookTimeout: 20_000 },
      },
      {
        extends: true,
        test: {
          name: 'chromium',
          include: ['tests/browser/*.test.ts'],
          globalSetup: ['tests/browser/setup.ts'],
          testTimeout: 20_000,
          browser: {
            enabled: true,
            headless: true,
            screenshotFailures: false,
            api: { host: '127.0.0.1' },
            provider: playwright({ launchOptions: { executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium', args: ['--no-sandbox'] } }),
            instances: [{ browser: 'chromium' }],
          },
        },
      },
    ],
  },
});
