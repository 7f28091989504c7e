const MARGIN = 2; // so that a stroke at the edge is not cut

/** Return the path of a curve in a box; a value that is no number is a gap. */
export function sparkPath(values: readonly (number | null)[], width: number, height: number): string {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return "";
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const across = width / (values.length - 1);
  const up = high > low ? (height - 2 * MARGIN) / (high - low) : 0;
  const floor = high > low ? height - MARGIN : height / 2;
  let pen = "M";
  const parts = values.map((value, at) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const part = `${pen}${short(at * across)} ${short(floor - (value - low) * up)}`;
    pen = "L";
    return part;
  });
  return parts.join("");
}

function short(value: number): string {
  return String(Math.round(value * 10) / 10);
}
