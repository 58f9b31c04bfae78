import { useState } from 'react';
import { useConnection, useKeyedState, useLive, useMessages, usePublish, useRoster } from '@millrace/client/react';

export function App() {
  const { state, transport, reconnecting } = useConnection();
  const [isShown, setShown] = useState(true);
  const [car, setCar] = useState(1);
  const [clicks, setClicks] = useState(0);
  return (
    <>
      <p id="connection">{reconnecting ? 'reconnecting' : state.name}</p>
      <p id="transport">{transport}</p>
      <button id="toggle" onClick={() => setShown(!isShown)}>Show or hide</button>
      <button id="next" onClick={() => setCar(car + 1)}>Next car</button>
      <button id="click" onClick={() => setClicks(clicks + 1)}>{clicks}</button>
      {isShown && (
        <>
          <Car id={car} />
          <Car id={car} />
          <Car id={car} />
          <Feed />
          <Fleet />
          <Room room="kitchen" />
          <Refused />
        </>
      )}
    </>
  );
}

function Car({ id }: { id: number }) {
  const { data } = useLive(`cars/${id}/telemetry`, { from: 'latest' });
  return <p className="car">{id}: {data ? `${data.speed} km/h` : 'no message yet'}</p>;
}

function Feed() {
  const { messages, received, ready, gaps, error } = useMessages('feed');
  renders++;
  return (
    <>
      <p id="feed-status">{ready ? `${received} received, ${gaps} gaps` : 'reading'} {error?.message}</p>
      <ol id="feed">
        {messages.map(({ data, position }) => (
          <li key={position}>{data.n}</li>
        ))}
      </ol>
    </>
  );
}

function Fleet() {
  const { entries, ready, set, delete: remove } = useKeyedState('fleet');
  const mine = entries.get('mine')?.value.speed ?? 0;
  return (
    <>
      <p id="fleet-status">{ready ? `${entries.size} entries` : 'reading'}</p>
      <ul id="fleet">
        {[...entries.values()].map(({ key, value }) => (
          <li key={key}>{key} {value.speed}</li>
        ))}
      </ul>
      <button id="set" onClick={() => set('mine', { speed: mine + 1 })}>Faster</button>
      <button id="delete" onClick={() => remove('mine')}>Remove</button>
    </>
  );
}

function Room({ room }: { room: string }) {
  const { members, connections } = useRoster(`chat/${room}`);
  const { data } = useLive(`chat/${room}`);
  const { publish, pending, error } = usePublish(`chat/${room}`);
  return (
    <>
      <p id="members">{members.size} members, {connections} connections</p>
      <p id="chat">{data?.text}</p>
      <button id="publish" onClick={() => publish({ text: 'hello' })}>Say hello</button>
      <button id="too-large" onClick={() => publish({ text: 'x'.repeat(2_000_000) })}>Say too much</button>
      <p id="publishing">{pending} pending {error?.reason}</p>
    </>
  );
}

function Refused() {
  // A wrong start of a wildcard: the error is a value.
  const { error } = useLive('cars/+/telemetry', { from: 'latest' });
  const { state } = useConnection();
  return <p id="refused">{`${error?.code}, ${state.name}`}</p>;
}
