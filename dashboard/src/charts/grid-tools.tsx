import type { Rank } from "../api/wire";
import { useWord } from "../ui/router";
import { SearchLine } from "../ui/search-line";
import { Tools } from "../ui/tools";
import { DrawTools } from "./draw-tools";

/** Which charts, and how all of them are drawn. */
export function GridTools({ ranks }: { ranks: readonly Rank[] }) {
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
      <DrawTools ranks={ranks} axes={["step", "time", "relative"]} />
      {zoom ? (
        <button type="button" onClick={() => setZoom("")}>
          Show all
        </button>
      ) : null}
    </Tools>
  );
}
