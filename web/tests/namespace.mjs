// Runs a command in the network namespace of this process: `node namespace.mjs DOOR PORT COMMAND..`. There,
// 127.0.0.1:PORT leads to the Unix socket DOOR, and 127.0.0.1:7 returns datagrams. Ends with the command, at SIGTERM,
// and when its standard input ends.
import { execFileSync, spawn } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';

const [door, port, command, ...words] = process.argv.slice(2);
execFileSync('ip', ['link', 'set', 'lo', 'up']);
const server = createServer((inside) => {
  const outside = connect(door);
  inside.pipe(outside).pipe(inside);
  for (const socket of [inside, outside]) socket.on('error', () => [inside, outside].forEach((one) => one.destroy()));
});
await once(server.listen(Number(port), '127.0.0.1'), 'listening');
const echo = createSocket('udp4');
echo.on('message', (data, { port, address }) => echo.send(data, port, address)).bind(7, '127.0.0.1');
await once(echo, 'listening');

const child = spawn(command, words, { stdio: ['ignore', 'inherit', 'inherit'] });
const end = () => child.kill('SIGTERM');
process.on('SIGTERM', end);
process.stdin.on('end', end).resume();
child.on('error', (error) => {
  console.error(String(error));
  process.exit(1);
});
child.on('exit', (code) => process.exit(code ?? 1));
