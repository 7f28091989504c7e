import type { Curve, Rank } from "../api/wire";
import { SearchLine } from "../ui/field";
import { Icon } from "../ui/icon";
import { Tools } from "../ui/panel";
import { useWord } from "../ui/router";
import { number, whole } from "../ui/text/format";
import type { Across } from "./data/columns";
import { listed, nearest, SHOWN, toggled } from "./data/words";

const MOST_AT_ONCE = 16; // ranks whose curves fit into one chart
const MOST_RANKS = 256;
const NAMES: Record<Across, string> = { step: "by step", time: "by time", relative: "since the start" };

interface Props {
  ranks: readonly Rank[];
  axes: readonly Across[];
  /** Whether a later generation has repeated steps of a curve here. */
  hasReplaced: boolean;
}

/** Whose curves, and how they are drawn. All of it is in the address. */
export function DrawTools({ ranks, axes, hasReplaced }: Props) {
  const [rank, setRank] = useWord("rank");
  const [axis, setAxis] = useWord("x");
  const [, setZoom] = useWord("zoom");
  const [scale, setScale] = useWord("y");
  const [smooth, setSmooth] = useWord("smooth");
  const [view, setView] = useWord("view");
  const [replaced, setReplaced] = useWord("replaced");
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
      {hasReplaced ? (
        <button
          type="button"
          data-testid="replaced"
          aria-pressed={replaced === SHOWN}
          title="Points of steps that were repeated, such as after a restart"
          onClick={() => setReplaced(replaced === SHOWN ? "" : SHOWN)}
        >
          Show replaced points
        </button>
      ) : null}
      <button
        type="button"
        data-view="table"
        aria-pressed={isTable}
        title="Show the charts as tables ( t )"
        onClick={() => setView(isTable ? "" : "table")}
      >
        Table
      </button>
    </>
  );
}

/** Which charts, and how all of them are drawn. */
export function GridTools({ ranks, hasReplaced }: Omit<Props, "axes">) {
  const [words, setWords] = useWord("q");
  const [zoom, setZoom] = useWord("zoom");
  return (
    <Tools>
      <SearchLine
        label="Search metrics"
        data-testid="metric-search"
        placeholder="Search metrics"
        value={words}
        onChange={(event) => setWords(event.target.value)}
      />
      <DrawTools ranks={ranks} axes={["step", "time", "relative"]} hasReplaced={hasReplaced} />
      {zoom ? (
        <button type="button" onClick={() => setZoom("")}>
          Show all
        </button>
      ) : null}
    </Tools>
  );
}

interface CurveSliderProps {
  curve: Curve | undefined;
  picked: number | null;
  onPick: (step: number) => void;
}

/** The chart for a keyboard: arrows move along the curve and show what changed before. */
export function CurveSlider({ curve, picked, onPick }: CurveSliderProps) {
  const last = (curve?.steps.length ?? 0) - 1;
  if (!curve || last < 1) return null;
  const at = nearest(picked ?? Infinity, curve.steps);
  return (
    <input
      className="unseen"
      type="range"
      min={0}
      max={last}
      value={at}
      aria-label="Position in the curve"
      aria-valuetext={`step ${whole(curve.steps[at])}, ${number(curve.last[at])}`}
      onChange={(event) => onPick(curve.steps[event.target.valueAsNumber] ?? 0)}
    />
  );
}

/** Keeps a chart at the top, or lets it go. */
export function PinButton({ name }: { name: string }) {
  const [pins, setPins] = useWord("pin");
  const isPinned = listed(pins).includes(name);
  const label = isPinned ? `Unpin ${name}` : `Pin ${name}`;
  return (
    <button
      type="button"
      data-testid="pin"
      aria-pressed={isPinned}
      aria-label={label}
      title={label}
      onClick={() => setPins(toggled(pins, name))}
    >
      <Icon name="pin" />
    </button>
  );
}
