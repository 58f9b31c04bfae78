// Type tests, which are not run: `npm run check` compiles this file.
import { keyedState, live, messages, publisher } from '@millrace/client/svelte';

export function types(id: string | undefined): void {
  const speed: number | undefined = live(`cars/1/telemetry`).current.data?.speed;
  const all: readonly number[] = messages('feed', { max: 5, from: { seconds: 60 } }).current.messages.map(({ data }) => data.n);
  console.log(speed, all, live(() => (id === undefined ? undefined : `cars/${id}/telemetry`)).current.data?.speed);
  void keyedState('fleet').current.set('car', { speed: 1 });
  // @ts-expect-error no such channel
  live('nope');
  // @ts-expect-error no such channel
  live(() => 'nope');
  // @ts-expect-error wrong payload
  void publisher('feed').publish({ speed: 1 });
}
