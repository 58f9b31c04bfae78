// Prints flash, RAM and worst-case stack of an MSP430 ELF file, and exits with 1 above the limits:
//
//   node size.mjs OBJDUMP ELF FLASH_MAX RAM_MAX
//
// The stack is an upper bound from the machine code: the deepest chain of calls of the main program, plus the deepest
// chain of one interrupt. Interrupts do not nest, because the CPU clears GIE when it enters a handler.
import { execFileSync } from 'node:child_process';

const [objdump, elf, flashMax, ramMax] = process.argv.slice(2);
const run = (...options) => execFileSync(objdump, [...options, elf], { encoding: 'utf8', maxBuffer: 1 << 26 });

/** Bytes per section. */
function sections() {
  const sizes = {};
  for (const [, name, size] of run('-h').matchAll(/^\s*\d+ (\.\w+)\s+([0-9a-f]{8}) /gm)) sizes[name] = parseInt(size, 16);
  return sizes;
}

/** Functions by address. `frame` is the sum of all pushes and reservations of stack, in bytes. */
function functions() {
  const found = new Map();
  let one;
  for (const line of run('-d', '--no-show-raw-insn').split('\n')) {
    const head = /^([0-9a-f]+) <(.+)>:$/.exec(line);
    if (head) {
      one = { name: head[2], frame: 0, calls: [], jumps: [], isIndirect: false };
      found.set(parseInt(head[1], 16), one);
      continue;
    }
    const [, operation, operands = ''] = /^\s*[0-9a-f]+:\s+(\S+)\s*(.*)$/.exec(line) ?? [];
    if (!operation) continue;
    const [first, last] = operands.split(',').map((operand) => operand.trim());
    if (/^push/.test(operation)) one.frame += 2;
    else if (last === 'r1' && /^sub|^add/.test(operation) && first.startsWith('#')) {
      const bytes = Number(first.slice(1)) << 16 >> 16;
      one.frame += Math.max(0, operation === 'sub' ? bytes : -bytes);
    } else if (first === 'r1' && /^decd/.test(operation)) one.frame += 2;
    else if (operation === 'call' && first.startsWith('#')) one.calls.push(Number(first.slice(1)));
    else if (operation === 'call') one.isIndirect = true;
    else if (operation === 'br' && first.startsWith('#')) one.jumps.push(Number(first.slice(1)));
  }
  return found;
}

/** Addresses of functions that constants contain: the targets of indirect calls. */
function pointers(all) {
  const words = [];
  for (const [, bytes] of run('-s', '-j', '.rodata').matchAll(/^ [0-9a-f]+ ((?:[0-9a-f]{2,8} ){1,4})/gm)) {
    const hex = bytes.replaceAll(' ', '');
    for (let at = 0; at + 4 <= hex.length; at += 4) words.push(parseInt(hex.slice(at + 2, at + 4) + hex.slice(at, at + 2), 16));
  }
  return [...new Set(words)].filter((address) => all.has(address));
}

/** The deepest chain from a function: bytes and the names on it. */
function deepest(address, all, indirect, above = []) {
  const one = all.get(address);
  if (!one) throw new Error(`${above.at(-1)} calls ${address.toString(16)}, which is no function`);
  if (above.includes(one.name)) throw new Error(`${one.name} is recursive: its stack has no bound`);
  const below = [...one.calls, ...(one.isIndirect ? indirect : [])].map((callee) => {
    const chain = deepest(callee, all, indirect, [...above, one.name]);
    return { bytes: chain.bytes + 2, names: chain.names };
  });
  below.push(...one.jumps.filter((callee) => all.has(callee) && callee !== address).map((callee) => deepest(callee, all, indirect, [...above, one.name])));
  const worst = below.reduce((a, b) => (b.bytes > a.bytes ? b : a), { bytes: 0, names: [] });
  return { bytes: one.frame + worst.bytes, names: [one.name, ...worst.names] };
}

const sizes = sections();
const all = functions();
const indirect = pointers(all);
const entry = (name) => [...all].find(([, one]) => one.name === name)?.[0];
const program = deepest(entry('resetEntry'), all, indirect);
// A handler starts with the return address and the status register on the stack.
const interrupts = ['tickFrame', 'transmitFrame', 'receiveFrame'].map((name) => deepest(entry(name), all, indirect));
const interrupt = interrupts.reduce((a, b) => (b.bytes > a.bytes ? b : a));
const flash = (sizes['.text'] ?? 0) + (sizes['.rodata'] ?? 0) + (sizes['.data'] ?? 0) + (sizes['.vectors'] ?? 0);
const variables = (sizes['.data'] ?? 0) + (sizes['.bss'] ?? 0);
const stack = program.bytes + interrupt.bytes + 4;

console.log(`flash ${flash} of ${flashMax} bytes (code ${sizes['.text']}, constants ${sizes['.rodata'] ?? 0}, vectors ${sizes['.vectors']})`);
console.log(`RAM   ${variables + stack} of ${ramMax} bytes (variables ${variables}, stack ${stack})`);
console.log(`stack main program ${program.bytes}: ${program.names.join(' > ')}`);
console.log(`stack interrupt ${interrupt.bytes + 4}: ${interrupt.names.join(' > ')}`);
if (flash > flashMax) console.error(`flash: ${flash} bytes are above the limit of ${flashMax}; make the code smaller`);
if (variables + stack > ramMax) console.error(`RAM: ${variables + stack} bytes are above the limit of ${ramMax}; make variables or call chains smaller`);
process.exit(flash > flashMax || variables + stack > ramMax ? 1 : 0);
