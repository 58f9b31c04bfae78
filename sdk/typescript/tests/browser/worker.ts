import { millrace, type TransportName } from '../../src/index.js';

// Receives a server and a transport, publishes five messages, and posts the messages received.
onmessage = async ({ data: { url, transport } }: MessageEvent<{ url: string; transport: TransportName }>) => {
  const mr = millrace(url, { transports: [transport], pollMs: 20 });
  const channel = `worker/${transport}`;
  const subscription = mr.subscribe(channel);
  await subscription.ready;
  for (let n = 0; n < 5; n++) await mr.publish(channel, n);
  const got: unknown[] = [];
  for await (const event of subscription) {
    got.push(event.data);
    if (event.data === 4) break;
  }
  await mr.close();
  postMessage({ got, window: 'window' in globalThis });
};
