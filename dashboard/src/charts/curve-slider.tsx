import type { Curve } from "../api/wire";
import { number, whole } from "../ui/format";
import { nearest } from "./nearest";

interface Props {
  curve: Curve | undefined;
  picked: number | null;
  onPick: (step: number) => void;
}

/** The chart for a keyboard: arrows move along the curve and show what changed before. */
export function CurveSlider({ curve, picked, onPick }: Props) {
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
      aria-label="Place in the curve"
      aria-valuetext={`step ${whole(curve.steps[at])}, ${number(curve.last[at])}`}
      onChange={(event) => onPick(curve.steps[event.target.valueAsNumber] ?? 0)}
    />
  );
}
