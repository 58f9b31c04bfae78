/** Topologies between wearers. Uses no DOM. */
export const TOPOLOGIES = [
  { name: 'mesh', label: 'Mesh', description: 'Each wearer has a data channel to each other one.' },
  { name: 'star', label: 'Star', description: 'One wearer, the hub, forwards between all others.' },
  { name: 'relay', label: 'Relay', description: 'As a mesh, but each data channel goes through the TURN relay of this server.' },
  { name: 'server', label: 'Server', description: 'Each wearer publishes to a channel of this server, and all others subscribe to it.' },
] as const;
export type TopologyName = (typeof TOPOLOGIES)[number]['name'];

/** Maximum number of wearers of one tab, as many as workers per shift in the thesis. */
export const WEARERS_MAX = 10;

export const topologyOf = (name: string | null): (typeof TOPOLOGIES)[number] => TOPOLOGIES.find((one) => one.name === name) ?? TOPOLOGIES[0];
export const wearersOf = (text: string | null): number => Math.min(Math.max(Math.round(Number(text ?? WEARERS_MAX)) || WEARERS_MAX, 1), WEARERS_MAX);
