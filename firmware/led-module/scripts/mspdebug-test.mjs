// Runs the MSP430 firmware on the CPU simulator of mspdebug and checks the registers that the firmware writes:
//
//   node mspdebug-test.mjs ELF
//
// mspdebug simulates the CPU, Timer_A and low-power modes, but no USCI. Two simulated ports stand in for its registers
// 0x60 to 0x6f, because their registers hold what is written. The test sets a flag in IFG2 and triggers the interrupt,
// as the controller would after each byte.
import { spawnSync } from 'node:child_process';

const [elf] = process.argv.slice(2);
const TRANSMIT = 6; // 0xFFEC
const RECEIVE = 7; // 0xFFEE
const commands = [`prog ${elf}`, 'mw 0x10fe 0xb5 0x86', 'simio add tracer t 40000', 'simio add timer ta 3', 'simio add gpio a', 'simio config a base 0x60', 'simio config a irq 0', 'simio add gpio b', 'simio config b base 0x68', 'simio config b irq 0', 'simio config t clear'];
const hex = (value) => `0x${value.toString(16)}`;

// Bytes from the start of a frame in crt0.S to its `reti`.
const RETI = 30;

/** Runs to the end of a handler. */
function finish(frame) {
  commands.push(`setbreak ${frame}+${RETI} 0`, 'run', 'step', 'delbreak');
}

/** Runs until the next tick; the main loop has then done its work for the last one. */
function tick() {
  finish('tickFrame');
}

/** Runs a handler once with these flags in IFG2. */
function interrupt(vector, frame, flags) {
  commands.push(`mw 0x03 ${hex(flags)}`, `simio config t trigger ${vector}`);
  finish(frame);
}

function receive(text) {
  for (const byte of Buffer.from(text)) {
    commands.push(`mw 0x66 ${hex(byte)}`);
    interrupt(RECEIVE, 'receiveFrame', 0x01);
  }
}

function crc(text) {
  let value = 0xffff;
  for (const byte of Buffer.from(text)) {
    value ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) value = value & 0x8000 ? ((value << 1) ^ 0x1021) & 0xffff : (value << 1) & 0xffff;
  }
  return `${text}*${value.toString(16).padStart(4, '0')}\n`;
}

const BOOT = crc('ev boot 00');
const VERSION = crc('5a ok 1 00 00 00');
tick(); // Initialisation ends with sleep; the first tick wakes the CPU.
tick(); // The main loop has started the transfer of all registers.
for (let byte = 0; byte < 13; byte++) interrupt(TRANSMIT, 'transmitFrame', 0x08); // Twelve bytes, then STOP.
interrupt(TRANSMIT, 'transmitFrame', 0); // An interrupt without a flag has no effect.
commands.push('mw 0x69 0x90'); // The controller clears UCTXSTP when STOP is complete.
receive(crc('5a v'));
tick();
for (let byte = 0; byte < BOOT.length + VERSION.length + 1; byte++) interrupt(TRANSMIT, 'transmitFrame', 0x02);
tick();
commands.push('md 0x0 4', 'simio info t', 'exit');

const run = spawnSync('mspdebug', ['-q', '-n', 'sim', ...commands], { encoding: 'utf8', timeout: 120_000, maxBuffer: 1 << 26 });
if (run.error) {
  console.error(`mspdebug: ${run.error.message}; run it by hand: mspdebug sim "prog ${elf}"`);
  process.exit(1);
}
const writes = [...run.stdout.matchAll(/write\.[bw] => 0x([0-9a-f]{4}) 0x([0-9a-f]+)/g)].map(([, address, value]) => [parseInt(address, 16), parseInt(value, 16)]);
const to = (address) => writes.filter(([at]) => at === address).map(([, value]) => value);
const text = (address) => String.fromCharCode(...to(address));

const EXPECTED = {
  watchdog_is_in_watchdog_mode_from_the_first_write: [writes[0], [0x120, 0x5a08]],
  watchdog_password_is_in_every_write: [[...new Set(to(0x120))], [0x5a08]],
  clock_is_set_from_the_calibration_constants: [[to(0x56), to(0x57)], [[0, 0xb5], [0x86]]],
  tick_is_10_ms_from_smclk: [[to(0x172)[0], to(0x162)[0], to(0x160)[0]], [9999, 0x10, 0x214]],
  uart_has_9600_baud_from_1_mhz: [[to(0x61), to(0x60), to(0x62), to(0x63), to(0x64)], [[0x81, 0x80], [0], [104], [0], [2]]],
  i2c_is_configured_in_reset_as_100_khz_master: [[to(0x69).slice(0, 2), to(0x68), to(0x6a), to(0x6b), to(0x11a)], [[0x81, 0x80], [0x0f], [10], [0], [0x45]]],
  pins_have_their_functions: [[to(0x26), to(0x41), to(0x22), to(0x21)], [[0x06, 0xc6], [0x06, 0xc6], [0x21], [0x08, 0x28]]],
  adc_measures_channel_a4: [[to(0x4a), to(0x1b2), to(0x1b0)], [[0x10], [0x4000], [0x1810]]],
  first_tick_sends_start_and_stop_follows: [to(0x69).slice(2), [0x92, 0x94, 0x90]],
  transmit_interrupt_sends_all_registers: [to(0x6f), [0x10, 0, 0, 0, 0x44, 0x44, 0x44, 0x44, 0x44, 0xff, 0x0f, 0x88]],
  uart_sends_boot_event_and_reply: [text(0x67), BOOT + VERSION],
  only_known_registers_are_written: [writes.map(([at]) => at).filter((at) => ![0x19, 0x1a, 0x21, 0x22, 0x26, 0x27, 0x29, 0x2a, 0x2e, 0x41, 0x4a, 0x53, 0x56, 0x57, 0x60, 0x61, 0x62, 0x63, 0x64, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6f, 0x11a, 0x120, 0x160, 0x162, 0x172, 0x1b0, 0x1b2].includes(at)), []],
};

let failed = 0;
for (const [name, [actual, expected]] of Object.entries(EXPECTED)) {
  const isEqual = JSON.stringify(actual) === JSON.stringify(expected);
  failed += isEqual ? 0 : 1;
  console.log(isEqual ? `ok     ${name}` : `FAILED ${name}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(actual)}`);
}
console.log(`${Object.keys(EXPECTED).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
