// Socket.IO, doing what Millrace's bare WebSocket does: a message goes to all in the room of its channel.
const { createServer } = require('node:http');
const { Server } = require('socket.io');

const http = createServer();
const io = new Server(http, { perMessageDeflate: false, httpCompression: false, serveClient: false, maxHttpBufferSize: 1 << 20 });
io.on('connection', (socket) => {
  const { channel, subscribe } = socket.handshake.query;
  if (subscribe !== 'no') socket.join(channel);
  socket.on('m', (data) => io.to(channel).emit('m', data));
});
http.listen(0, '127.0.0.1', 8192, () => console.log(`listening on http://127.0.0.1:${http.address().port}`));
