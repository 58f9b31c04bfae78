// Whom a participant is connected with, by the room's state. Source: docs/rooms.md, "Topologies".
import type { RoomState } from './types.js';

/** The participant that is the server. */
export const SWITCH = 'switch';
/** Whose the sound of a room with a mixer is: that of all others, as one. */
export const MIX = 'mix';

/** Everybody has one connection, with the server. */
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
