// The `ws` package, doing what Millrace's bare WebSocket does: the path is the topic, a message goes to all its subscribers.
const { createServer } = require('node:http');
const { WebSocketServer } = require('ws');

const topics = new Map();
const http = createServer();
const sockets = new WebSocketServer({ server: http, perMessageDeflate: false, maxPayload: 1 << 20 });
sockets.on('connection', (socket, request) => {
  const url = new URL(request.url, 'http://x');
  const topic = topics.get(url.pathname) ?? new Set();
  topics.set(url.pathname, topic);
  if (url.searchParams.get('subscribe') !== 'no') topic.add(socket);
  socket.on('message', (data, binary) => {
    for (const subscriber of topic) subscriber.send(data, { binary });
  });
  socket.on('close', () => topic.delete(socket));
});
http.listen(0, '127.0.0.1', 8192, () => console.log(`listening on http://127.0.0.1:${http.address().port}`));
