import { age, NOTHING } from "./format";
import { useNow } from "./use-now";

/** How long ago something was; its title has the date. */
export function Ago({ time }: { time: string | null }) {
  const now = useNow();
  if (!time) return <span>{NOTHING}</span>;
  const at = new Date(time);
  return (
    <time className="number" dateTime={time} title={at.toLocaleString()}>
      {age(Math.max(0, (now - at.getTime()) / 1000))}
    </time>
  );
}
