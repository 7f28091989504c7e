/** The words of each verb: what its button and its question say. */

import type { Verb } from "../api/wire";
import type { IconName } from "../ui/icon";

export interface Words {
  button: string;
  icon: IconName;
  title: (job: string) => string;
  about: string;
  done: string;
  isGrave?: boolean;
}

export const VERBS: Record<Verb, Words> = {
  set: {
    button: "Change a knob",
    icon: "knob",
    title: (job) => `Change a knob of ${job}`,
    about: "All ranks take the new value at one and the same step. It can be undone.",
    done: "Apply",
  },
  undo: {
    button: "Undo",
    icon: "back",
    title: (job) => `Undo a change of ${job}`,
    about: "The knob goes back to what it followed before, at one step on all ranks.",
    done: "Undo",
  },
  pause: {
    button: "Pause",
    icon: "pause",
    title: (job) => `Pause ${job}`,
    about: "All ranks wait before one and the same step. Nothing is lost; resume goes on there.",
    done: "Pause",
  },
  resume: {
    button: "Resume",
    icon: "play",
    title: (job) => `Resume ${job}`,
    about: "A paused job goes on at its next step; an ended one from its newest checkpoint, a completed one to a later step.",
    done: "Resume",
  },
  resize: {
    button: "Resize",
    icon: "resize",
    title: (job) => `Have ${job} go on with other ranks`,
    about: "All ranks save before one and the same step and end; as many as you say go on there.",
    done: "Resize",
  },
  checkpoint: {
    button: "Checkpoint",
    icon: "checkpoint",
    title: (job) => `Save a checkpoint of ${job}`,
    about: "All ranks save before one and the same step, and go on.",
    done: "Save",
  },
  stop: {
    button: "Stop",
    icon: "stop",
    title: (job) => `Stop ${job}`,
    about: "All ranks end before one and the same step. Logs, curves and checkpoints stay.",
    done: "Stop",
    isGrave: true,
  },
  cancel: {
    button: "Cancel",
    icon: "close",
    title: (job) => `Cancel ${job}`,
    about: "It leaves the queue, or is ended. What it has saved stays.",
    done: "Cancel the job",
    isGrave: true,
  },
};

/** In the order of their buttons; `undo` stands with the change that it undoes. */
const BUTTONS: readonly Verb[] = ["set", "pause", "resume", "checkpoint", "resize", "stop", "cancel"];

/** Return the buttons for what the server says may be asked now; a stop leaves no need to cancel. */
export function buttonsOf(verbs: readonly Verb[]): Verb[] {
  return BUTTONS.filter((verb) => verbs.includes(verb) && !(verb === "cancel" && verbs.includes("stop")));
}
