// Type tests, which are not run. `npm run check` fails if a line compiles that must not, or if a valid line does not
// compile.
import { millrace, type Subscription } from '../src/index.js';
import { useKeyedState, useLive, usePublish } from '../src/react.js';
import { roster } from '../src/roster.js';
import { state } from '../src/state.js';

interface Telemetry {
  speed: number;
}
type App = { 'cars/{id}/telemetry': Telemetry; 'ticks/{symbol}': { price: number } };

export async function typed(): Promise<void> {
  await using mr = millrace<App>('http://localhost');
  const car: Subscription<Telemetry> = mr.subscribe('cars/1/telemetry', { from: { seconds: 60 } });
  for await (const { data, offset } of car) console.log(data.speed, offset + 1n);
  mr.subscribe('cars/+/telemetry').on(({ data }) => console.log(data.speed));
  await mr.publish('ticks/ACME', { price: 1 });
  const [first] = await mr.history('ticks/ACME', { since: 1n });
  console.log(first?.data.price);
  // @ts-expect-error wrong payload
  await mr.publish('ticks/ACME', { speed: 1 });
  // @ts-expect-error no such channel
  mr.subscribe('nope/1');
  // @ts-expect-error no such transport
  await mr.use('carrier-pigeon');
  const sum: number = await mr.rpc<number>('math/sum', [1, 2], { timeoutMs: 1000, signal: AbortSignal.timeout(2000) });
  console.log(sum);
  // @ts-expect-error unknown until a type says what it is
  (await mr.rpc('math/sum')).toFixed();
  const cars = state<Telemetry>(mr, 'cars/all');
  const speed: number | undefined = cars.get('1')?.speed;
  await cars.set('1', { speed: speed ?? 0 }, { ifMatch: cars.entry('1')?.position ?? '0', ttl: 60 });
  // @ts-expect-error wrong value
  await cars.set('1', { rpm: 1 });
  // @ts-expect-error only the server changes a roster
  roster(mr, 'chat/1').set('ann', {});
  const open = millrace('http://localhost');
  open.subscribe('anything').on(({ data }) => {
    // @ts-expect-error unknown until a schema or a type says what it is
    console.log(data.speed);
  });
}

/** Hooks of an application that declares no channels. */
export function useUntyped(): void {
  const { data } = useLive(`any/${Math.random()}`);
  // @ts-expect-error unknown until a schema or a type says what it is
  console.log(data.speed);
  void usePublish('any').publish({ anything: 1 });
  void useKeyedState('any').set('key', [1]);
}
