/**
 * The part of Web Bluetooth that the gateway uses, and the service of a kit. Source: docs/reference/gateway.md,
 * "Bluetooth".
 */

/** Service of a kit, and its characteristics. */
export const SERVICE = 'b4d70001-1f6e-4c0a-9b5e-3a7c52e8d910';
export const CHARACTERISTICS = {
  led: 'b4d70002-1f6e-4c0a-9b5e-3a7c52e8d910',
  state: 'b4d70003-1f6e-4c0a-9b5e-3a7c52e8d910',
  light: 'b4d70004-1f6e-4c0a-9b5e-3a7c52e8d910',
} as const;
/** Longest value of a characteristic in bytes. Source: Bluetooth Core Specification, Vol. 3, Part F, section 3.2.9. */
export const VALUE_BYTES_MAX = 512;

export interface Characteristic extends EventTarget {
  readonly value?: DataView;
  readonly properties: { readonly notify: boolean };
  readValue(): Promise<DataView>;
  writeValueWithResponse(value: Uint8Array): Promise<void>;
  startNotifications(): Promise<unknown>;
}

export interface GattServer {
  readonly connected: boolean;
  connect(): Promise<GattServer>;
  disconnect(): void;
  getPrimaryService(uuid: string): Promise<{ getCharacteristic(uuid: string): Promise<Characteristic> }>;
}

export interface BluetoothDevice extends EventTarget {
  readonly id: string;
  readonly name?: string;
  readonly gatt?: GattServer;
}

export interface Bluetooth {
  requestDevice(options: { readonly filters: readonly { readonly services: readonly string[] }[] }): Promise<BluetoothDevice>;
}

/** Web Bluetooth of this browser, if it has it. */
export const bluetooth = (): Bluetooth | undefined => (navigator as { bluetooth?: Bluetooth }).bluetooth;

/** Asks the user for a kit. Undefined if the user chose none. */
export async function requestKit(of: Bluetooth): Promise<BluetoothDevice | undefined> {
  try {
    return await of.requestDevice({ filters: [{ services: [SERVICE] }] });
  } catch (thrown) {
    if ((thrown as DOMException).name === 'NotFoundError') return undefined;
    throw thrown;
  }
}
