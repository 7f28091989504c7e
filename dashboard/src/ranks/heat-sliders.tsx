import type { Place, Shown } from "./heat-look";

interface Props {
  shown: Shown;
  chosen: Place | null;
  words: string;
  onChoose: (place: Place) => void;
}

/** The cells for a keyboard: one slider goes through the ranks, one through the time. */
export function HeatSliders({ shown: { lines }, chosen, words, onChoose }: Props) {
  const last = { line: lines.length - 1, column: (lines[0]?.values.length ?? 1) - 1 };
  const at = chosen ?? { line: 0, column: last.column };
  const say = { "aria-valuetext": words, onFocus: () => onChoose(at) };
  if (last.line < 0) return null;
  return (
    <>
      <input
        {...say}
        className="unseen"
        type="range"
        aria-label="Rank"
        data-testid="heat-rank"
        min={0}
        max={last.line}
        value={at.line}
        onChange={(event) => onChoose({ ...at, line: event.target.valueAsNumber })}
      />
      <input
        {...say}
        className="unseen"
        type="range"
        aria-label="Time"
        data-testid="heat-time"
        min={0}
        max={last.column}
        value={at.column}
        onChange={(event) => onChoose({ ...at, column: event.target.valueAsNumber })}
      />
    </>
  );
}
