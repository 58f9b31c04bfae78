/** The first message, in three ways. Every command works unchanged on the origin that served this page. */
export interface Line {
  readonly description: string;
  readonly code: string;
}
export interface Recipe {
  readonly name: string;
  readonly lines: readonly Line[];
}

export function recipes(origin: string, channel: string): readonly Recipe[] {
  const url = `${origin}/v1/channels/${channel}`;
  return [
    {
      name: 'curl',
      lines: [
        { description: 'Publish', code: `curl -d '{"hello":"curl"}' ${url}` },
        { description: 'Polling: returns the newest message', code: `curl ${url}` },
        { description: 'Long polling: waits up to 30 s for the next message', code: `curl '${url}?wait=30'` },
        { description: 'Server-sent events: receives messages until you stop it', code: `curl -N -H 'Accept: text/event-stream' ${url}` },
      ],
    },
    {
      name: 'EventSource',
      lines: [
        {
          description: 'Subscribe in any page of this origin. It resumes after a lost connection.',
          code: `const source = new EventSource('${url}');\nsource.onmessage = (event) => console.log(event.lastEventId, event.data);`,
        },
        {
          description: 'Publish from the same page',
          code: `await fetch('${url}', { method: 'POST', body: '{"hello":"fetch"}' });`,
        },
      ],
    },
    {
      name: 'SDK',
      lines: [
        {
          description: 'Subscribe over any transport. It resumes after a lost connection.',
          code:
            `import { millrace } from '@millrace/client';\n\nconst client = millrace('${origin}');\n` +
            `client.subscribe('${channel}').on((event) => console.log(event.position, event.data));`,
        },
        { description: 'Publish', code: `await client.publish('${channel}', { hello: 'SDK' });` },
      ],
    },
  ];
}
