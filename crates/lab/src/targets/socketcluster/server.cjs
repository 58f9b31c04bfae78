// SocketCluster, whose clients publish and subscribe without any code of ours.
const { createServer } = require('node:http');
const { attach } = require('socketcluster-server');

const http = createServer();
const server = attach(http, { perMessageDeflate: false });
(async () => {
  for await (const { error } of server.listener('error')) console.error(error);
})();
http.listen(0, '127.0.0.1', 8192, () => console.log(`listening on http://127.0.0.1:${http.address().port}`));
