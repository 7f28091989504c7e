/** The types of the API: of the routes in `schema.d.ts`, of the WebSocket in `stream.d.ts`, both generated
 * from the server's models. Here are only the names that the dashboard uses for them. */

import type { components as routes } from "../../types/schema";
import type { components as stream } from "../../types/stream";

type Schemas = routes["schemas"];
type Streamed = stream["schemas"];

export type Job = Schemas["Job"];
export type JobState = Schemas["JobState"];
export type CommandRequest = Partial<Omit<Schemas["CommandRequest"], "verb">> & { verb: Verb };
export type Preview = Schemas["Preview"] & { refused: Problem | null };
export type Checkpoint = Schemas["Checkpoint"];
export type Me = Schemas["Me"];
export type Health = Schemas["DeviceRequest"]["state"];
export type Role = Me["role"];

export type JobRow = Streamed["ListedJob"] & Partial<Pick<Streamed["ShownJob"], "first_error" | "summary">>;
export type Rank = Streamed["ShownRank"];
export type Knob = Streamed["ShownKnob"];
export type Clocks = Streamed["Clocks"];
export type Command = Streamed["Command"];
export type CommandAck = Streamed["CommandRank"];
export type Curve = Streamed["CurveColumns"];
/** What one generation reported of steps that a later one has repeated. */
export type Replaced = Curve["replaced"][number];
/** The columns that curves and what they replaced have. */
export type Buckets = Omit<Replaced, "generation">;
export type Points = Streamed["PointColumns"];
export type Heat = Streamed["HeatMap"];
export type HeatLine = Streamed["HeatLine"];
export type HeatCell = Streamed["HeatDelta"]["cells"][number];
export type Entry = Streamed["TimelineEntry"];
export type EntryKind = Entry["kind"];
export type LogLine = Streamed["KeyedLine"];
export type Level = LogLine["level"];
export type Check = Streamed["Check"];
export type ClusterNode = Streamed["ClusterNode"];
export type ClusterRank = Streamed["ClusterRank"];
export type ClusterJob = Streamed["ClusterJob"];
export type ClusterValue = Streamed["ClusterValue"];
export type Device = Streamed["ClusterDevice"];
export type Queued = Streamed["Queued"];
export type Problem = Omit<Streamed["Problem"], "type" | "title">; // the page makes some itself

/** What an operator may do to a job. */
export type Verb = Streamed["JobValue"]["verbs"][number];

/** The value of each topic, as a snapshot has it. */
export type Values = Streamed["StreamValues"];

/** The data of a delta of each topic. */
export type Deltas = Streamed["StreamDeltas"];

export type Topic = keyof Values;

/** A subscription, without its id and its cursor. */
export type TopicRequest<T extends Topic = Topic> = Omit<Streamed["Sub"], "op" | "id" | "after" | "topic"> & { topic: T };

export type ServerMessage = Streamed["ServerMessage"];
export type ClientMessage = Streamed["Sub"] | Streamed["Unsub"];
