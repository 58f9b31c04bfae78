import { isEverywhere } from '../../lib/info';

/** A step to serve the network with TLS and tokens: the three commands of the README, with the port of this server. */
export interface Step {
  readonly description: string;
  readonly code: string;
}

/** Returns the steps. Empty if the server already serves the network. */
export function secureSteps(listen: readonly string[]): readonly Step[] {
  if (isEverywhere(listen)) return [];
  const { protocol, port } = new URL(listen[0] ?? location.origin);
  const at = port || (protocol === 'https:' ? '443' : '80');
  // A server with a certificate already has tokens, or its operator has decided against them.
  if (protocol === 'https:') return [{ description: 'Restart the server with this address', code: `--listen 0.0.0.0:${at}` }];
  const token = "millrace token create --key millrace.key --sub phone --subscribe '#' --history '#' --expires 1day";
  return [
    { description: 'Create a key that signs tokens', code: 'millrace token key --out millrace.key' },
    { description: 'Stop this server, then start it with TLS and tokens', code: `millrace serve --listen 0.0.0.0:${at} --tls-dev --set 'auth.keys=["millrace.key.pub"]'` },
    { description: 'Print the link for your phone (valid for one day)', code: `echo "https://$(hostname -I | cut -d' ' -f1):${at}/carcare#token=$(${token})"` },
  ];
}
