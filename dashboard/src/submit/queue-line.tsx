import { useLive } from "../api/use-live";

/** How busy the plane is now: whether a job will begin at once is a matter of who is before it. */
export function QueueLine() {
  const jobs = useLive({ topic: "jobs" }).value?.items;
  if (!jobs) return null;
  const count = (state: string) => jobs.filter((job) => job.state === state).length;
  return (
    <span>
      Now {count("RUNNING")} running, {count("QUEUED")} waiting.
    </span>
  );
}
