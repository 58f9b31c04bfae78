import type { TestProject } from 'vitest/node';
import { startMillrace } from '../millrace.js';

declare module 'vitest' {
  interface ProvidedContext {
    millraceUrl: string;
    /** Of a server that lets no page in from here. */
    closedUrl: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  // Pages of loopback are let in by default; a list replaces that.
  const servers = [await startMillrace(), await startMillrace(['limits.allowed_origins=["https://app.example"]'])] as const;
  project.provide('millraceUrl', servers[0].url);
  project.provide('closedUrl', servers[1].url);
  return async () => void (await Promise.all(servers.map((server) => server.stop())));
}
