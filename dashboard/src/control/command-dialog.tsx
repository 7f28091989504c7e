import { useState } from "react";

import { explained, newKey } from "../api/http";
import { useOrder, usePreview } from "../api/use-command";
import { useLive } from "../api/use-live";
import type { Command, JobRow, Knob, Verb } from "../api/wire";
import { Button } from "../ui/button";
import { Dialog, Foot, Outlook, Question } from "../ui/dialog";
import { useSettled } from "../ui/hooks";
import styles from "./command-dialog.module.css";
import { CommandFields } from "./command-fields";
import { CommandAcks, OutcomeLine } from "./commands";
import { outcomeOf } from "./outcome";
import { EMPTY, type Form, read } from "./request";
import { VERBS } from "./verbs";

const PAUSE = 250; // milliseconds without a key until it is looked what would happen

interface Props {
  job: JobRow;
  verb: Verb;
  knobs: readonly Knob[];
  command?: string;
  from?: string;
  /** A knob and its new value, where these are known already. */
  change?: { knob: string; value: string };
  onClose: () => void;
}

/** Send a command to a job: fill it in, preview the effect, confirm, watch the ranks answer. */
export function CommandDialog({ job, verb, knobs, command = "", from = "", change: begun, onClose }: Props) {
  const words = VERBS[verb];
  const [form, setForm] = useState<Form>(() => {
    const unpause = verb === "resume" && job.ended_at === null;
    return { ...EMPTY, verb, command, from, unpause, knob: firstOf(knobs), ...begun };
  });
  const [key, setKey] = useState(newKey);
  const { request, wrong } = read(form, knobs);
  const preview = usePreview(job.id, useSettled(request, PAUSE));
  const order = useOrder(job.id);
  const change = (more: Partial<Form>) => {
    setForm({ ...form, ...more });
    setKey(newKey()); // another request than the one before
    order.reset();
  };
  const confirm = () => {
    if (request) order.mutate({ request, key });
  };
  const title = words.title(job.name || job.id);
  if (order.data) {
    return (
      <Dialog title={title} onClose={onClose}>
        <CommandOutcome job={job.id} asked={order.data.command} onClose={onClose} />
      </Dialog>
    );
  }
  const shown = request ? preview.data : undefined;
  const refused = preview.error?.problem ?? shown?.refused;
  return (
    <Dialog title={title} onClose={onClose}>
      <Question
        about={words.about}
        done={words.done}
        dismiss={verb === "cancel" ? "Close" : "Cancel"}
        isGrave={words.isGrave}
        isReady={request !== null && !preview.data?.refused}
        isBusy={order.isPending}
        problem={order.error ? explained(order.error) : null}
        onConfirm={confirm}
        onClose={onClose}
      >
        <CommandFields job={job} form={form} knobs={knobs} wrong={wrong} onChange={change} />
        <Outlook
          lines={shown ? [shown.summary] : []}
          warnings={shown?.warnings ?? []}
          refused={refused}
          command={shown?.command}
          hint="Enter what to change."
        />
      </Question>
    </Dialog>
  );
}

function firstOf(knobs: readonly Knob[]): string {
  return (knobs.find(({ name }) => name === "lr") ?? knobs[0])?.name ?? "";
}

interface CommandOutcomeProps {
  job: string;
  asked: Command | null;
  onClose: () => void;
}

/** What becomes of a command, rank by rank, as the answers come. */
function CommandOutcome({ job, asked, onClose }: CommandOutcomeProps) {
  const { value } = useLive({ topic: "commands", job });
  const now = value?.items.find(({ id }) => id === asked?.id) ?? asked;
  return (
    <div className={styles.outcome} data-testid="outcome" data-state={now?.state ?? "asked"}>
      {now ? (
        <>
          <OutcomeLine outcome={outcomeOf(now)} />
          <CommandAcks acks={now.ranks} />
        </>
      ) : (
        <p>The job is ending; its state shows when it has ended.</p>
      )}
      <Foot>
        <Button tone="main" onClick={onClose}>
          Done
        </Button>
      </Foot>
    </div>
  );
}
