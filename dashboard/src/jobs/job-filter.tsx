import type { JobRow } from "../api/wire";
import { Chips, FilterBar, SearchLine } from "../ui/field";
import { useWord } from "../ui/router";
import { counted, STATES } from "./filter";

/** Chips for states, a line for words; both are in the address. */
export function JobFilter({ jobs }: { jobs: readonly JobRow[] }) {
  const [state, setState] = useWord("state");
  const [words, setWords] = useWord("q");
  const counts = counted(jobs);
  const chips: [string, string, number][] = [
    ["", "All", jobs.length],
    ...STATES.map((name): [string, string, number] => [name, named(name), counts[name] ?? 0]),
  ];
  return (
    <FilterBar>
      <Chips label="State">
        {chips.map(([value, text, count]) => (
          <button
            key={value}
            type="button"
            data-count={count}
            aria-pressed={state.toUpperCase() === value}
            onClick={() => setState(value === state.toUpperCase() ? "" : value)}
          >
            {text} <span className="number">{count}</span>
          </button>
        ))}
      </Chips>
      <SearchLine
        label="Filter jobs"
        data-testid="job-filter"
        placeholder="Name, id, owner, tag, reason  ( / )"
        value={words}
        onChange={(event) => setWords(event.target.value)}
      />
    </FilterBar>
  );
}

function named(state: string): string {
  return state.charAt(0) + state.slice(1).toLowerCase();
}
