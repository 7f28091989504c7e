import { Empty } from "../ui/empty";
import { Link } from "../ui/link";

/** An address that means nothing. */
export function NotFound() {
  return (
    <Empty title="There is no such page">
      <p>
        <Link href="/jobs">All jobs</Link>
      </p>
    </Empty>
  );
}
