/**
 * Moves labels apart. Each label keeps its order and stays as close to its wanted position as `gap` and the edges
 * allow.
 */
export function place(wanted: readonly number[], gap: number, low: number, high: number): number[] {
  const order = wanted.map((_, index) => index).sort((a, b) => wanted[a]! - wanted[b]!);
  // Groups of labels that touch. Each group is centered at the mean of the wanted positions of its labels.
  const groups: { members: number[]; at: number }[] = [];
  const height = (members: readonly number[]) => (members.length - 1) * gap;
  const centre = (members: readonly number[]) => {
    const mean = members.reduce((sum, member) => sum + wanted[member]!, 0) / members.length;
    const half = height(members) / 2;
    return Math.min(Math.max(mean, low + half), Math.max(low + half, high - half));
  };
  for (const index of order) {
    let group = { members: [index], at: centre([index]) };
    for (let last = groups.at(-1); last; last = groups.at(-1)) {
      if (group.at - height(group.members) / 2 - (last.at + height(last.members) / 2) >= gap) break;
      groups.pop();
      const members = [...last.members, ...group.members];
      group = { members, at: centre(members) };
    }
    groups.push(group);
  }
  const placed = new Array<number>(wanted.length).fill(0);
  for (const { members, at } of groups) members.forEach((member, i) => (placed[member] = at - height(members) / 2 + i * gap));
  return placed;
}
