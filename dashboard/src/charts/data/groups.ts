/** All metrics of a job as rows of charts, by the prefix of their names. Pure. */

export interface Group {
  name: string;
  metrics: string[];
  isFolded: boolean;
}

export type Row = { kind: "head"; key: string; group: Group } | { kind: "charts"; key: string; metrics: string[]; columns: number };

export const PINNED = "pinned";
const ALONE = "no prefix";
const ORDER = new Intl.Collator("en", { numeric: true }); // layer 9 before layer 10

/** Return what is found, pinned ones first, then by prefix; those without one come before the others. */
export function groupsOf(
  metrics: readonly string[],
  { words, pins, folds }: { words: string; pins: readonly string[]; folds: readonly string[] },
): Group[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = metrics.filter((name) => wanted.every((word) => name.toLowerCase().includes(word)));
  const groups = new Map<string, string[]>([[ALONE, []]]);
  for (const name of [...found].sort(ORDER.compare)) {
    const prefix = prefixOf(name);
    groups.set(prefix, [...(groups.get(prefix) ?? []), name]);
  }
  const pinned: [string, string[]] = [PINNED, pins.filter((name) => found.includes(name))];
  return [pinned, ...groups]
    .filter(([, names]) => names.length > 0)
    .map(([name, names]) => ({ name, metrics: names, isFolded: folds.includes(name) }));
}

/** Return groups as rows of so many charts, or of all where these are fewer; of a folded group the head alone. */
export function rowsOf(groups: readonly Group[], most: number): Row[] {
  return groups.flatMap((group): Row[] => {
    const columns = Math.max(1, Math.min(most, group.metrics.length)); // few charts fill the page, too
    const head: Row = { kind: "head", key: `head ${group.name}`, group };
    const count = group.isFolded ? 0 : Math.ceil(group.metrics.length / columns);
    const rows = Array.from({ length: count }, (_, at): Row => {
      const metrics = group.metrics.slice(at * columns, (at + 1) * columns);
      return { kind: "charts", key: `${group.name} ${metrics.join(" ")}`, metrics, columns };
    });
    return [head, ...rows];
  });
}

/** Return how many charts fit beside each other. */
export function columnsOf(width: number, least: number, gap: number, most: number): number {
  return Math.max(1, Math.min(most, Math.floor((width + gap) / (least + gap))));
}

function prefixOf(name: string): string {
  const end = name.indexOf("/");
  return end > 0 ? name.slice(0, end) : ALONE;
}
