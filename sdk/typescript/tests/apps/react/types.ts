// Type tests, which are not run: `npm run check` compiles this file.
import { useKeyedState, useLive, useMessages, usePublish } from '@millrace/client/react';

export function useTypes(id: string | undefined): void {
  const speed: number | undefined = useLive(`cars/1/telemetry`).data?.speed;
  const all: readonly number[] = useMessages('feed', { max: 5, from: { seconds: 60 } }).messages.map(({ data }) => data.n);
  console.log(speed, all, useLive(id === undefined ? undefined : `cars/${id}/telemetry`).data?.speed);
  void useKeyedState('fleet').set('car', { speed: 1 });
  // @ts-expect-error no such channel
  useLive('nope');
  // @ts-expect-error wrong payload
  void usePublish('feed').publish({ speed: 1 });
}
