// Engine.IO, doing what Millrace's bare WebSocket does: a message goes to all who read its channel.
const { createServer } = require('node:http');
const engine = require('engine.io');

const channels = new Map();
const http = createServer();
const server = engine.attach(http, { perMessageDeflate: false, httpCompression: false, maxHttpBufferSize: 1 << 20 });
server.on('connection', (socket) => {
  const { channel, subscribe } = socket.request._query;
  const readers = channels.get(channel) ?? new Set();
  channels.set(channel, readers);
  if (subscribe !== 'no') readers.add(socket);
  socket.on('message', (data) => {
    for (const reader of readers) reader.send(data);
  });
  socket.on('close', () => readers.delete(socket));
});
http.listen(0, '127.0.0.1', 8192, () => console.log(`listening on http://127.0.0.1:${http.address().port}`));
