/** The texts of each verb: its button and its dialog. */

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
    about: "All ranks take the new value at the same step. It can be undone.",
    done: "Apply",
  },
  undo: {
    button: "Undo",
    icon: "back",
    title: (job) => `Undo a change of ${job}`,
    about: "The knob returns to its earlier value or schedule, at the same step on all ranks.",
    done: "Undo",
  },
  pause: {
    button: "Pause",
    icon: "pause",
    title: (job) => `Pause ${job}`,
    about: "All ranks wait before the same step. Nothing is lost; resume continues there.",
    done: "Pause",
  },
  resume: {
    button: "Resume",
    icon: "play",
    title: (job) => `Resume ${job}`,
    about: "A paused job continues at its next step, an ended job from its newest checkpoint; a completed job trains up to a later step.",
    done: "Resume",
  },
  resize: {
    button: "Resize",
    icon: "resize",
    title: (job) => `Resize ${job}`,
    about: "All ranks save before the same step and end; the new number of ranks continues there.",
    done: "Resize",
  },
  checkpoint: {
    button: "Checkpoint",
    icon: "checkpoint",
    title: (job) => `Save a checkpoint of ${job}`,
    about: "All ranks save before the same step and keep training.",
    done: "Save",
  },
  stop: {
    button: "Stop",
    icon: "stop",
    title: (job) => `Stop ${job}`,
    about: "All ranks end before the same step. Logs, curves and checkpoints are kept.",
    done: "Stop",
    isGrave: true,
  },
  cancel: {
    button: "Cancel",
    icon: "close",
    title: (job) => `Cancel ${job}`,
    about: "The job leaves the queue, or is ended at once. What it has saved is kept.",
    done: "Cancel the job",
    isGrave: true,
  },
};

/** In the order of their buttons; `undo` stands with the change that it undoes. */
const BUTTONS: readonly Verb[] = ["set", "pause", "resume", "checkpoint", "resize", "stop", "cancel"];

/** Return the buttons of the verbs that the server allows now; where stop is allowed, cancel is left out. */
export function buttonsOf(verbs: readonly Verb[]): Verb[] {
  return BUTTONS.filter((verb) => verbs.includes(verb) && !(verb === "cancel" && verbs.includes("stop")));
}
