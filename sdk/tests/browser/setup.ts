import type { TestProject } from 'vitest/node';
import { startMillrace } from '../millrace.js';

declare module 'vitest' {
  interface ProvidedContext {
    millraceUrl: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const server = await startMillrace(['limits.allowed_origins=["*"]']);
  project.provide('millraceUrl', server.url);
  return () => server.stop();
}
