import type { TestProject } from 'vitest/node';
import { startMillrace } from '../millrace.js';

declare module 'vitest' {
  interface ProvidedContext {
    millraceUrl: string;
    /** URL of a server that refuses the origin of this page. */
    closedUrl: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  // By default, loopback origins are allowed. A list replaces that default.
  const servers = [await startMillrace(), await startMillrace(['limits.allowed_origins=["https://app.example"]'])] as const;
  project.provide('millraceUrl', servers[0].url);
  project.provide('closedUrl', servers[1].url);
  return async () => void (await Promise.all(servers.map((server) => server.stop())));
}
