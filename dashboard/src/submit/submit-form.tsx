import { type ReactNode, type SubmitEvent, useMemo, useState } from "react";

import { newKey } from "../api/http";
import { useLive } from "../api/use-live";
import { type Schemas, type Spec, useSubmit } from "../api/use-spec";
import type { Problem } from "../api/wire";
import { Button } from "../ui/button";
import { Field } from "../ui/field";
import { Panel, Trouble } from "../ui/panel";
import { go } from "../ui/router";
import { commandFor } from "./command";
import { cwdHint, pythonHint } from "./hints";
import { type Section, sectionsOf } from "./parts";
import { SpecPart } from "./spec-part";
import { SpecText } from "./spec-text";
import styles from "./submit-form.module.css";
import { useDraft } from "./use-draft";
import { valueAt, wrongOf } from "./values";

export interface Start {
  spec: Spec;
  cwd: string;
  python: string;
}

/** A job as a form and as text, looked at by the server while one writes, then submitted. */
export function SubmitForm({ schemas, start }: { schemas: Schemas; start: Start }) {
  const sections = useMemo(() => sectionsOf(schemas), [schemas]);
  const writing = useDraft(start.spec);
  const [cwd, setCwd] = useState(start.cwd);
  const [python, setPython] = useState(start.python);
  const [key, setKey] = useState(newKey);
  const order = useSubmit();
  const { spec } = writing;
  const problem = order.error?.problem ?? writing.problem;
  const changed = <T,>(how: (value: T) => void) => {
    return (value: T) => {
      how(value);
      setKey(newKey()); // another job than the one before
      order.reset();
    };
  };
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    order.mutate({ spec, cwd, python, key }, { onSuccess: ({ id }) => go(`/jobs/${encodeURIComponent(id)}`) });
  };
  const fields = [...sections.flatMap(({ parts }) => parts.map(({ path }) => path)), "cwd", "python"];
  const isPlaced = fields.some((path) => wrongOf(problem, path));
  return (
    <form className={styles.columns} onSubmit={submit} noValidate>
      <Panel title="The job">
        {sections.map((section, at) => (
          <SpecSection
            key={section.title}
            section={section}
            isFirst={at < 2}
            spec={spec}
            problem={problem}
            onChange={changed(writing.write)}
          >
            {at === 0 ? (
              <>
                <Field
                  label="folder"
                  data-path="cwd"
                  hint={cwdHint}
                  wrong={wrongOf(problem, "cwd")}
                  value={cwd}
                  placeholder="/home/ada/project"
                  onChange={(event) => changed(setCwd)(event.target.value)}
                />
                <Field
                  label="python"
                  data-path="python"
                  hint={pythonHint}
                  wrong={wrongOf(problem, "python")}
                  value={python}
                  placeholder="/home/ada/project/.venv/bin/python"
                  onChange={(event) => changed(setPython)(event.target.value)}
                />
              </>
            ) : null}
          </SpecSection>
        ))}
        {problem && !isPlaced ? <Trouble detail={problem.detail} remedy={problem.remedy} /> : null}
        <footer className={styles.foot}>
          <Button type="submit" tone="main" data-testid="submit" disabled={order.isPending || !writing.isRead}>
            {order.isPending ? "Submitting" : "Submit"}
          </Button>
          <span role="status">{problem ? "The server would refuse this spec." : ""}</span>
          <QueueLine />
        </footer>
      </Panel>
      <div className={styles.text}>
        <SpecText
          text={writing.text}
          format={writing.format}
          wrong={problem?.field === "body" ? problem.detail : null}
          command={commandFor(typeof spec.name === "string" ? spec.name : "", cwd)}
          onFormat={writing.turn}
          onChange={changed(writing.type)}
        />
      </div>
    </form>
  );
}

interface Props {
  section: Section;
  isFirst: boolean;
  spec: Spec;
  problem: Problem | null;
  onChange: (spec: Spec) => void;
  /** Fields that are no part of the spec. */
  children?: ReactNode;
}

/** Fields that belong together; folded until the user opens them or fills one in. */
function SpecSection({ section, isFirst, spec, problem, onChange, children }: Props) {
  const { title, parts } = section;
  const isUsed = parts.some(({ path }) => valueAt(spec, path) !== undefined || wrongOf(problem, path));
  return (
    <details className={styles.section} open={isFirst || isUsed} data-section={title}>
      <summary>{title}</summary>
      <div className={styles.parts}>
        {parts.map((part) => (
          <SpecPart key={part.path} part={part} spec={spec} problem={problem} onChange={onChange} />
        ))}
        {children}
      </div>
    </details>
  );
}

/** How busy the plane is now: whether a job will begin at once is a matter of who is before it. */
function QueueLine() {
  const jobs = useLive({ topic: "jobs" }).value?.items;
  if (!jobs) return null;
  const count = (state: string) => jobs.filter((job) => job.state === state).length;
  return (
    <span>
      Now {count("RUNNING")} running, {count("QUEUED")} waiting.
    </span>
  );
}
