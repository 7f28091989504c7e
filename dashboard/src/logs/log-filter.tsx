import { useState } from "react";

import { Chips, FilterBar, SearchLine } from "../ui/field";
import { useWord } from "../ui/router";
import { LEVELS, ranksOf, toggled } from "./filter";
import styles from "./log-filter.module.css";

/** Whose lines, how grave, and matching what; all of it is in the address. */
export function LogFilter({ ranks }: { ranks: readonly number[] }) {
  const [chosen, setChosen] = useWord("ranks");
  const [level, setLevel] = useWord("level");
  const [regex, setRegex] = useWord("regex");
  const [typed, setTyped] = useState(regex);
  const wanted = ranksOf(chosen);
  return (
    <FilterBar>
      <Chips label="Ranks">
        <button type="button" aria-pressed={wanted.length === 0} onClick={() => setChosen("")}>
          All ranks
        </button>
        {ranks.map((rank) => (
          <button
            key={rank}
            type="button"
            data-testid="rank-chip"
            aria-pressed={wanted.includes(rank)}
            aria-label={`Rank ${rank}`}
            onClick={() => setChosen(toggled(chosen, rank))}
          >
            {rank}
          </button>
        ))}
      </Chips>
      <label className={styles.level}>
        <span className="unseen">Level</span>
        <select data-testid="log-level" value={level} onChange={(event) => setLevel(event.target.value)}>
          <option value="">All levels</option>
          {LEVELS.slice(1).map((name) => (
            <option key={name} value={name}>
              {name} or more severe
            </option>
          ))}
        </select>
      </label>
      <form
        className={styles.words}
        onSubmit={(event) => {
          event.preventDefault();
          setRegex(typed);
        }}
      >
        <SearchLine
          label="Lines that match a regular expression"
          data-testid="log-regex"
          placeholder="Regular expression, then Enter"
          maxLength={500}
          value={typed}
          onChange={(event) => {
            setTyped(event.target.value);
            if (!event.target.value) setRegex("");
          }}
        />
      </form>
    </FilterBar>
  );
}
