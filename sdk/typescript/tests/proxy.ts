// A TCP relay before the real server whose connections can be cut.
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';

export interface Proxy {
  readonly url: string;
  /** Breaks every connection without notice. */
  cut(): void;
  stop(): void;
}

export async function startProxy(target: string, port = 0): Promise<Proxy> {
  const { hostname, port: farPort } = new URL(target);
  const sockets = new Set<Socket>();
  const relay = createServer((near) => {
    const far = connect(Number(farPort), hostname);
    for (const [from, to] of [[near, far], [far, near]] as const) {
      sockets.add(from);
      from.pipe(to);
      from.on('error', () => to.destroy());
      from.on('close', () => {
        sockets.delete(from);
        to.destroy();
      });
    }
  });
  await new Promise<void>((resolve) => relay.listen(port, '127.0.0.1', resolve));
  const cut = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  return {
    url: `http://127.0.0.1:${(relay.address() as AddressInfo).port}`,
    cut,
    stop: () => {
      cut();
      relay.close();
    },
  };
}
