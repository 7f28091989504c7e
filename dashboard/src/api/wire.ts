/** What is said over the page's one socket. The REST side is in `schema.d.ts`, made from the server. */

import type { components } from "../../types/schema";
import type { Heat, HeatCell } from "./heat";

type Schemas = components["schemas"];
export type Job = Schemas["Job"];
export type JobState = Schemas["JobState"];
export type Rank = Schemas["Rank"] & {
  step_seconds?: number | null;
  silent_seconds?: number | null;
};
export type Command = Schemas["Command"];
export type CommandAck = Schemas["CommandRank"];
export type CommandRequest = Partial<Omit<Schemas["CommandRequest"], "verb">> & { verb: Verb };
export type Curve = Schemas["CurveColumns"];
export type Preview = Schemas["Preview"] & { refused: Problem | null };
export type Checkpoint = Schemas["Checkpoint"];
export type Check = Schemas["Check"];
export type LogLine = Schemas["LogLine"] & { key: string };
export type Level = LogLine["level"];
export type Me = Schemas["Me"];
export type Device = Schemas["Device"] & { id: string };
export type Health = Schemas["DeviceRequest"]["state"];
export type Queued = Schemas["Queued"];
export type Role = Me["role"];

/** What may be asked of a job. `cancel` is of those that have no ranks to ask. */
export type Verb = "set" | "undo" | "pause" | "resume" | "resize" | "stop" | "checkpoint" | "cancel";

export interface JobRow extends Job {
  progress: number | null;
  total_steps: number | null;
  eta_seconds: number | null;
  throughput: number | null;
  loss: number | null;
  spark: (number | null)[];
  spark_name: string | null;
  queue_position: number | null;
  project: string;
  tags: string[];
  first_error?: Record<string, unknown> | null;
}

export type Knob = Schemas["Knob"] & {
  type: "float" | "int" | "bool" | "str" | "json";
  low: number | null;
  high: number | null;
  /** What each of `ranks` began with, where these differ. */
  values?: unknown[];
};

export interface Clocks {
  process: { state: string; up: number; total: number; detail: string };
  progress: {
    state: string;
    step: number | null;
    phase: string | null;
    seconds_since: number | null;
    detail: string;
  };
  scheduler: { state: string; engine: string; handle: string; detail: string };
}

export interface Points {
  name: string;
  rank: number;
  role: string;
  steps: number[];
  times: number[];
  values: (number | null)[];
}

export type EntryKind =
  | "knob"
  | "command"
  | "checkpoint"
  | "restart"
  | "recovery"
  | "rank"
  | "node"
  | "alert"
  | "state"
  | "event";

export interface Entry {
  key: string;
  seq: number;
  time: string;
  step: number | null;
  kind: EntryKind;
  title: string;
  what: string;
  author: string;
  reason: string;
  rank: number | null;
  before: unknown;
  after: unknown;
  command: string | null;
  facts: Record<string, unknown>;
  /** Something went wrong: it is listed however much came after it. */
  is_failure: boolean;
}

/** How much of something a node has, or has left; of devices their uuids. */
export interface Room {
  cpus: number;
  memory_mb: number;
  gpus: string[];
}

/** A host: what it has, and how its agent is. What is null is known only of hosts that are up. */
export interface ClusterNode {
  id: string;
  state: string;
  reason: string;
  cpus: number | null;
  memory_mb: number | null;
  gpus: string[] | null;
  free: Room | null;
  jobs: string[] | null;
  workers: number;
  /** Null is now. */
  heard_at: string | null;
}

/** A rank that has a device; its id is JOB/ROLE/RANK. */
export interface ClusterRank {
  id: string;
  job: string;
  role: string;
  rank: number;
  node: string;
  state: string;
  replica: string;
  reason: string;
}

export interface ClusterJob {
  id: string;
  name: string;
  state: string;
  owner: string;
}

export interface ClusterValue {
  nodes: ClusterNode[];
  devices: Device[];
  ranks: ClusterRank[];
  jobs: ClusterJob[];
  queue: Queued[];
}

/** What is another of a list: items that changed or came, and the ids of those that went. */
export interface Change<T> {
  items: T[];
  gone: string[];
}

/** The value of each topic, as a snapshot has it. */
export interface Values {
  jobs: { items: JobRow[] };
  job: {
    /** Null when it has been removed. */
    job: JobRow | null;
    clocks: Clocks;
    ranks: Rank[];
    knobs: Knob[];
    metrics: string[];
    verbs: Verb[];
  };
  series: { series: Curve[] };
  heat: Heat;
  timeline: { items: Entry[] };
  commands: { items: Command[] };
  /** `older`: there are lines before these. */
  logs: { items: LogLine[]; older: boolean };
  /** Readings of checkpoints, by step. */
  checks: { items: Check[] };
  cluster: ClusterValue;
}

/** What a delta of each topic has. */
export interface Deltas {
  jobs: { items: JobRow[]; gone?: string[] };
  job: Partial<Values["job"]>;
  series: { points: Points[] };
  heat: { cells: HeatCell[] };
  timeline: { items: Entry[] };
  commands: { items: Command[] };
  logs: { items: LogLine[] };
  checks: { items: Check[] };
  cluster: { [P in Exclude<keyof ClusterValue, "queue">]?: Change<ClusterValue[P][number]> } & { queue?: Queued[] };
}

export type Topic = keyof Values;

export interface Wish<T extends Topic = Topic> {
  topic: T;
  job?: string;
  names?: string[];
  ranks?: number[];
  buckets?: number;
  /** Of curves: steps, both ends in. */
  first?: number;
  last?: number;
  /** Of lines of cells: how many seconds they go back. */
  span?: number;
  limit?: number;
  level?: Level;
  regex?: string;
}

export interface Problem {
  status: number;
  code: string;
  detail: string;
  field?: string | null;
  remedy?: string | null;
}

export type Told =
  | { kind: "hello"; user: string; role: Role; version: string; time: number }
  | { kind: "beat"; time: number; behind: number; weaver: boolean }
  | { kind: "snapshot"; id: string; cursor: string; data: unknown }
  | { kind: "delta"; id: string; cursor: string; data: unknown }
  | { kind: "error"; id: string; problem: Problem };

export type Asked = ({ op: "sub"; id: string; after?: string } & Wish) | { op: "unsub"; id: string };
