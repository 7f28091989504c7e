import type { Rank } from "../api/wire";
import { useWord } from "../ui/router";
import type { Across } from "./columns";

const MOST_AT_ONCE = 16; // ranks whose curves fit into one chart
const MOST_RANKS = 256;
const NAMES: Record<Across, string> = { step: "by step", time: "by time", relative: "since the start" };

interface Props {
  ranks: readonly Rank[];
  axes: readonly Across[];
}

/** Whose curves, and how they are drawn. All of it is in the address. */
export function DrawTools({ ranks, axes }: Props) {
  const [rank, setRank] = useWord("rank");
  const [axis, setAxis] = useWord("x");
  const [, setZoom] = useWord("zoom");
  const [scale, setScale] = useWord("y");
  const [smooth, setSmooth] = useWord("smooth");
  const [view, setView] = useWord("view");
  const isTable = view === "table";
  const numbers = ranks.map((one) => one.rank).slice(0, MOST_RANKS);
  const turn = (next: string) => {
    setZoom(""); // a range of steps is none of times
    setAxis(next === "step" ? "" : next);
  };
  return (
    <>
      {numbers.length > 1 ? (
        <select aria-label="Rank" data-testid="rank-choice" value={rank} onChange={(event) => setRank(event.target.value)}>
          <option value="">rank 0</option>
          {numbers.filter(Boolean).map((one) => (
            <option key={one} value={one}>
              rank {one}
            </option>
          ))}
          {numbers.length <= MOST_AT_ONCE ? <option value="all">all ranks</option> : null}
        </select>
      ) : null}
      {isTable ? null : (
        <>
          <label>
            Smooth
            <input
              type="range"
              min={0}
              max={0.95}
              step={0.05}
              value={Number(smooth) || 0}
              onChange={(event) => setSmooth(event.target.value === "0" ? "" : event.target.value)}
            />
          </label>
          <button type="button" aria-pressed={scale === "log"} onClick={() => setScale(scale === "log" ? "" : "log")}>
            Log
          </button>
        </>
      )}
      {isTable && !axes.includes("relative") ? null : (
        <select aria-label="Axis" data-testid="axis" value={axis || "step"} onChange={(event) => turn(event.target.value)}>
          {axes.map((one) => (
            <option key={one} value={one}>
              {NAMES[one]}
            </option>
          ))}
        </select>
      )}
      <button
        type="button"
        data-view="table"
        aria-pressed={isTable}
        title="The same as numbers ( t )"
        onClick={() => setView(isTable ? "" : "table")}
      >
        Table
      </button>
    </>
  );
}
