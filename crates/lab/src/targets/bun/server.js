// uWebSockets inside Bun, doing what Millrace's bare WebSocket does: the path is the topic, a message goes to all its subscribers.
const server = Bun.serve({
  hostname: '127.0.0.1',
  port: 0,
  fetch(request, server) {
    const url = new URL(request.url);
    const data = { topic: url.pathname, subscribe: url.searchParams.get('subscribe') !== 'no' };
    return server.upgrade(request, { data }) ? undefined : new Response('a WebSocket, please', { status: 400 });
  },
  websocket: {
    perMessageDeflate: false,
    idleTimeout: 120,
    sendPings: true,
    maxPayloadLength: 1 << 20,
    backpressureLimit: 16 << 20,
    open(socket) {
      if (socket.data.subscribe) socket.subscribe(socket.data.topic);
    },
    message(socket, message) {
      server.publish(socket.data.topic, message);
    },
  },
});
console.log(`listening on http://127.0.0.1:${server.port}`);
