import type { TestProject } from 'vitest/node';
import { udpHost } from '../firefox.js';
import { startMillrace } from '../millrace.js';

declare module 'vitest' {
  interface ProvidedContext {
    millraceUrl: string;
    /** URL of a server that refuses the origin of this page. */
    closedUrl: string;
    /** Whether this browser can open data channels to the server on this machine. */
    hasDataChannels: boolean;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const isFirefox = project.name.startsWith('firefox');
  const hasDataChannels = !isFirefox || udpHost !== undefined;
  if (!hasDataChannels) console.warn('skipped: data channels in Firefox: they need an IPv4 address other than loopback, and this machine has none');
  project.provide('hasDataChannels', hasDataChannels);
  // By default, loopback origins are allowed. A list replaces that default.
  const settings = ['namespaces.list.state=true', 'namespaces.club.roster=true', ...(isFirefox && udpHost ? [`rtc.listen="${udpHost}:0"`] : [])];
  const servers = [await startMillrace(settings), await startMillrace(['limits.allowed_origins=["https://app.example"]'])] as const;
  project.provide('millraceUrl', servers[0].url);
  project.provide('closedUrl', servers[1].url);
  return async () => void (await Promise.all(servers.map((server) => server.stop())));
}
