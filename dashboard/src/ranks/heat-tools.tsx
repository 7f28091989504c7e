import { useWord } from "../ui/router";
import { Tools } from "../ui/tools";
import { MEASURES, SPANS, STEP_SECONDS } from "./heat-words";

/** Which number of the ranks, for how long, and whether as a table. All of it is in the address. */
export function HeatTools({ metrics }: { metrics: readonly string[] }) {
  const [measure, setMeasure] = useWord("heat");
  const [span, setSpan] = useWord("span");
  const [as, setAs] = useWord("as");
  const known = MEASURES.filter(([name]) => metrics.includes(name));
  return (
    <Tools>
      <select
        aria-label="Measure"
        data-testid="heat-measure"
        value={measure || STEP_SECONDS}
        onChange={(event) => setMeasure(event.target.value === STEP_SECONDS ? "" : event.target.value)}
      >
        {known.map(([name, text]) => (
          <option key={name} value={name}>
            {text}
          </option>
        ))}
      </select>
      <select aria-label="How long" data-testid="heat-span" value={span} onChange={(event) => setSpan(event.target.value)}>
        {SPANS.map(([seconds, text]) => (
          <option key={seconds} value={seconds}>
            {text}
          </option>
        ))}
      </select>
      <button type="button" aria-pressed={as === "table"} onClick={() => setAs(as === "table" ? "" : "table")}>
        Table
      </button>
    </Tools>
  );
}
