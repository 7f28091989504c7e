import type { Rank } from "../api/wire";
import { DrawTools } from "../charts/draw-tools";
import { useWord } from "../ui/router";
import { Tools } from "../ui/tools";

interface Props {
  metrics: readonly string[];
  name: string;
  ranks: readonly Rank[];
}

/** Which curve, and how it is drawn. All of it is in the address. */
export function CurveTools({ metrics, name, ranks }: Props) {
  const [, setMetric] = useWord("metric");
  const known = name && !metrics.includes(name) ? [name, ...metrics] : metrics;
  return (
    <Tools>
      <select aria-label="Metric" data-testid="metric" value={name} onChange={(event) => setMetric(event.target.value)}>
        {known.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
      <DrawTools ranks={ranks} axes={["step", "time"]} />
    </Tools>
  );
}
