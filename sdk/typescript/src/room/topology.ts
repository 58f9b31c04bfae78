// The links of a participant, derived from the room's state. Source: docs/reference/rooms.md, "Topologies".
import type { RoomState } from './types.js';

/** Pseudo-participant that stands for the SFU of the server. */
export const SWITCH = 'switch';
/** Pseudo-participant that owns the mixed audio of all other participants. */
export const MIX = 'mix';

/** Whether each participant has one connection, to the server. */
export const isByServer = (topology: RoomState['topology']): boolean => topology === 'switch' || topology === 'mixer';

export function neighbours({ topology, hub, parents = {}, participants }: RoomState, me: string): string[] {
  const others = participants.map(({ id }) => id).filter((id) => id !== me);
  switch (topology) {
    case 'star':
      return me === hub ? others : others.filter((id) => id === hub);
    case 'tree':
      return others.filter((id) => parents[id] === me || parents[me] === id);
    case 'switch':
    case 'mixer':
      return [SWITCH];
    default:
      return others;
  }
}
