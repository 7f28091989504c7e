import type { Entry } from "../api/wire";
import { Chips, FilterBar, SearchLine } from "../ui/field";
import { useWord } from "../ui/router";
import { counted } from "./filter";

/** Of which kind, by whom, and with which words; all of it is in the address. */
export function EventFilter({ entries }: { entries: readonly Entry[] }) {
  const [kind, setKind] = useWord("kind");
  const [by, setBy] = useWord("by");
  const [words, setWords] = useWord("q");
  const clear = () => {
    setKind("");
    setBy("");
  };
  return (
    <FilterBar>
      <Chips label="Kind">
        <button type="button" aria-pressed={!kind && !by} onClick={clear}>
          All <span className="number">{entries.length}</span>
        </button>
        <button
          type="button"
          data-testid="by-people"
          aria-pressed={by === "people"}
          onClick={() => setBy(by ? "" : "people")}
        >
          By users <span className="number">{entries.filter(({ author }) => author).length}</span>
        </button>
        {counted(entries).map(([name, count]) => (
          <button key={name} type="button" aria-pressed={kind === name} onClick={() => setKind(kind === name ? "" : name)}>
            {name} <span className="number">{count}</span>
          </button>
        ))}
      </Chips>
      <SearchLine
        label="Filter events"
        data-testid="event-filter"
        placeholder="Words, rank 3, a name"
        value={words}
        onChange={(event) => setWords(event.target.value)}
      />
    </FilterBar>
  );
}
