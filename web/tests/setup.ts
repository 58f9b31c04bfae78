import { serve, simulate } from './server.ts';

/** One server and one fleet for all tests; a test that needs a server of its own starts it itself. */
export default async function setup(): Promise<() => Promise<void>> {
  const server = await serve();
  const fleet = simulate(server.url);
  process.env.MILLRACE_URL = server.url;
  return async () => {
    await fleet.stop();
    await server.stop();
  };
}
