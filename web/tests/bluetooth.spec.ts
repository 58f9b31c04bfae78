// A kit on Bluetooth: the gateway page connects a device that Chromium emulates, and behind the device is a real
// simulated kit. A color on the page /ball goes through server, gateway page, Bluetooth, kit, firmware and I2C bus to
// the lamps, and the light comes back.
import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { chromium, expect, test, type Browser, type CDPSession, type Page } from '@playwright/test';
import { CHARACTERISTICS, SERVICE } from '../src/pages/gateway/gatt.ts';
import { BEST, LOOKS, url, violations } from './page.ts';
import { binary } from './server.ts';

const ADDRESS = '09:09:09:09:09:09';
/** Client Characteristic Configuration, without which a characteristic cannot notify. */
const CONFIGURATION = '00002902-0000-1000-8000-00805f9b34fb';

/** Methods and events of the DevTools protocol that Playwright has no types for. */
interface Protocol {
  send(method: string, parameters?: object): Promise<Record<string, string>>;
  on(event: string, fn: (parameters: Record<string, any>) => void): void;
}
const protocol = (session: CDPSession): Protocol => session as unknown as Protocol;

/** A simulated kit whose commands and reports are lines. */
class Kit {
  readonly #process: ChildProcessWithoutNullStreams;
  /** The newest state and reading, as JSON. */
  readonly values = { state: '', light: '' };
  readonly commands: string[] = [];

  constructor() {
    this.#process = spawn(binary(), ['simulate', 'earl', '--stdio']);
    createInterface({ input: this.#process.stdout }).on('line', (line) => {
      for (const [what, value] of Object.entries(JSON.parse(line) as object)) this.values[what as 'state' | 'light'] = JSON.stringify(value);
    });
  }

  write(command: string): void {
    this.commands.push(command);
    this.#process.stdin.write(`${command}\n`);
  }

  async stop(): Promise<void> {
    const gone = once(this.#process, 'exit');
    this.#process.stdin.end();
    await gone;
  }
}

/** A Bluetooth device that Chromium emulates. Its characteristics are those of the kit. */
class Peripheral {
  readonly #browser: Protocol;
  readonly #kit: Kit;
  readonly #names = new Map<string, keyof typeof CHARACTERISTICS>();
  #serviceId: string | undefined;
  #added = Promise.resolve();
  isSubscribed = false;

  private constructor(browser: Protocol, kit: Kit) {
    this.#browser = browser;
    this.#kit = kit;
  }

  static async create(browser: Browser, page: Page, kit: Kit): Promise<Peripheral> {
    const session = protocol(await browser.newBrowserCDPSession());
    const peripheral = new Peripheral(session, kit);
    await session.send('BluetoothEmulation.enable', { state: 'powered-on', leSupported: true });
    await session.send('BluetoothEmulation.simulatePreconnectedPeripheral', { address: ADDRESS, name: 'Earl 1', manufacturerData: [], knownServiceUuids: [SERVICE] });
    session.on('BluetoothEmulation.gattOperationReceived', ({ address, type }) => {
      const ready = type === 'connection' ? peripheral.#addService() : peripheral.#added;
      void ready.then(() => session.send('BluetoothEmulation.simulateGATTOperationResponse', { address, type, code: 0 }));
    });
    session.on('BluetoothEmulation.characteristicOperationReceived', ({ characteristicId, type, data }) => peripheral.#operate(characteristicId, type, data));
    const access = protocol(await page.context().newCDPSession(page));
    await access.send('DeviceAccess.enable');
    let prompt = '';
    access.on('DeviceAccess.deviceRequestPrompted', ({ id, devices }) => {
      // The list of devices is reported again whenever it changes.
      if (id === prompt || devices.length === 0) return;
      prompt = id;
      void peripheral.#addService().then(() => access.send('DeviceAccess.selectPrompt', { id, deviceId: devices[0].id }));
    });
    return peripheral;
  }

  /** Adds the service of a kit, at each connection again: Chromium forgets it with each disconnection. */
  #addService(): Promise<void> {
    return (this.#added = this.#added.then(() => this.#replaceService()));
  }

  async #replaceService(): Promise<void> {
    // Chromium refuses this if it has forgotten the service.
    if (this.#serviceId) await this.#send('removeService', { serviceId: this.#serviceId }).catch(() => {});
    const { serviceId } = await this.#send('addService', { address: ADDRESS, serviceUuid: SERVICE });
    this.#serviceId = serviceId;
    for (const [name, characteristicUuid] of Object.entries(CHARACTERISTICS)) {
      const properties = name === 'led' ? { write: true } : { read: true, notify: true };
      const { characteristicId } = await this.#send('addCharacteristic', { serviceId, characteristicUuid, properties });
      this.#names.set(characteristicId!, name as keyof typeof CHARACTERISTICS);
      if (name !== 'led') await this.#send('addDescriptor', { characteristicId, descriptorUuid: CONFIGURATION });
    }
  }

  /** Writes commands to the kit, and reads its newest values. */
  #operate(characteristicId: string, type: string, data: string): void {
    const name = this.#names.get(characteristicId)!;
    if (type === 'write') this.#kit.write(Buffer.from(data, 'base64').toString());
    if (type.startsWith('subscribe')) this.isSubscribed = true;
    const value = type === 'read' && name !== 'led' ? { data: Buffer.from(this.#kit.values[name]).toString('base64') } : {};
    // The browser refuses the answer to an operation that has ended with its connection.
    this.#send('simulateCharacteristicOperationResponse', { characteristicId, type, code: 0, ...value }).catch(() => {});
  }

  #send(method: string, parameters: object): Promise<Record<string, string>> {
    return this.#browser.send(`BluetoothEmulation.${method}`, parameters);
  }

  /** Ends the emulation, of which a browser has one. */
  async remove(): Promise<void> {
    await this.#send('disable', {});
  }

  async disconnect(): Promise<void> {
    await this.#send('simulateGATTDisconnection', { address: ADDRESS });
  }
}

let browser: Browser;
let kit: Kit;
let peripheral: Peripheral;

test.beforeAll(async () => {
  const options = test.info().project.use.launchOptions!;
  browser = await chromium.launch({ ...options, args: [...options.args!, '--enable-features=WebBluetooth', '--enable-experimental-web-platform-features'] });
});

test.beforeEach(() => {
  kit = new Kit();
});

test.afterEach(async () => {
  await peripheral?.remove();
  await kit.stop();
});

test.afterAll(async () => {
  await browser?.close();
});

test('a color reaches the lamps of a kit over Bluetooth', async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  peripheral = await Peripheral.create(browser, page, kit);
  await page.goto(url('/gateway/phone'));
  await page.getByLabel('Kit name').fill('earl/ble');
  await page.getByRole('button', { name: 'Connect a kit' }).click();
  await expect(page.getByText('Connected, read at an interval')).toBeVisible();
  expect(peripheral.isSubscribed, 'the page asks for notifications').toBe(true);

  const ball = await context.newPage();
  await ball.goto(url('/ball?kit=earl/ble'));
  await expect(ball.getByRole('status').first()).toHaveText('Connected');
  const reading = async (): Promise<number> => Number(await ball.getByRole('meter', { name: 'Light sensor' }).getAttribute('aria-valuenow'));
  await expect.poll(reading).toBeGreaterThan(0);
  const dark = await reading();
  await ball.getByLabel('Color').first().fill('#ff8800');
  await expect(ball.getByRole('img', { name: 'LED A is lit, red 15, green 8, blue 0' })).toHaveAttribute('data-measured', 'true');
  await expect.poll(reading).toBeGreaterThan(dark + 100);
  expect(kit.commands.length).toBeGreaterThanOrEqual(1);
  await expect(ball.getByText('Nothing has changed')).toBeHidden();

  // The connection is lost: the state says so, and the page connects again.
  // The page notices this by the event or by a read that fails, whichever comes first. It connects again soon, so the
  // alert is awaited from before.
  const lost = ball.getByRole('alert').filter({ hasText: /Bluetooth connection was lost|kit does not answer/ }).first().waitFor();
  await peripheral.disconnect();
  await lost;
  await expect(page.getByText('Connected, read at an interval')).toBeVisible({ timeout: 40_000 });
  await expect(ball.getByRole('status').first()).toHaveText('Connected');
  await ball.getByLabel('Color').first().fill('#0000ff');
  await expect(ball.getByRole('img', { name: 'LED A is lit, red 0, green 0, blue 15' })).toBeVisible();

  await page.getByRole('button', { name: 'Disconnect earl/ble' }).click();
  await expect(page.getByText('Connected, read at an interval')).toBeHidden();
  await context.close();
});

for (const { name, ...look } of LOOKS) {
  test(`the gateway page with a kit: ${name}`, async ({}, info) => {
    const context = await browser.newContext(look);
    const page = await context.newPage();
    peripheral = await Peripheral.create(browser, page, kit);
    await page.goto(url('/gateway/looks'));
    await page.getByLabel('Kit name').fill(`ble/${name.replace(' ', '-')}`);
    await page.getByRole('button', { name: 'Connect a kit' }).click();
    await expect(page.getByText('Connected, read at an interval')).toBeVisible();
    expect(await violations(page, BEST)).toEqual([]);
    expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 'no sideways scrolling').toBeLessThanOrEqual(0);
    await page.screenshot({ path: info.outputPath('bluetooth.png'), fullPage: true });
    await context.close();
  });
}
