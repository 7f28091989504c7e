import { useRecord } from "../api/use-record";
import { useSchemas } from "../api/use-spec";
import type { Role } from "../api/wire";
import { Empty, Skeleton, Trouble } from "../ui/panel";
import { useWord } from "../ui/router";
import { CopyLine } from "../ui/text/copy";
import { SubmitForm } from "./submit-form";
import styles from "./submit-page.module.css";
import { without } from "./values";

/** Submit a job, a new one or one like another; only for those who may. */
export function SubmitPage({ role }: { role: Role | undefined }) {
  const [from] = useWord("from");
  return (
    <div className={styles.page}>
      <title>Submit · torchLoom</title>
      <h1>Submit a job</h1>
      {role === undefined ? (
        <Skeleton height={320} />
      ) : role === "viewer" ? (
        <Empty title="Submitting needs the role operator">
          <p>An admin of the plane can make a user an operator:</p>
          <CopyLine text="loom tokens link NAME --role operator" label="Copy the command" />
        </Empty>
      ) : from ? (
        <Again key={from} job={from} />
      ) : (
        <Fresh />
      )}
    </div>
  );
}

function Fresh() {
  const { data, error } = useSchemas();
  if (error) return <Trouble detail={error.problem.detail} remedy={error.problem.remedy} />;
  if (!data) return <Skeleton height={320} />;
  return <SubmitForm schemas={data} start={{ spec: {}, cwd: "", python: "" }} />;
}

function Again({ job }: { job: string }) {
  const schemas = useSchemas();
  const record = useRecord(job);
  const problem = (schemas.error ?? record.error)?.problem;
  if (problem) return <Trouble detail={problem.detail} remedy={problem.remedy} />;
  if (!schemas.data || !record.data) return <Skeleton height={320} />;
  const { spec: before, recorded } = record.data;
  if (!before) {
    return (
      <Empty title={`${job} was not submitted as a spec`}>
        <p>Its record has what it was started with:</p>
        <CopyLine text={`loom show ${job} --spec`} label="Copy the command" />
      </Empty>
    );
  }
  const [spec, gone] = without(before);
  return (
    <>
      <p className={styles.about}>
        As {job} was submitted.
        {gone.length ? ` Values of ${gone.join(", ")} are not copied: add them to env again.` : ""}
      </p>
      <SubmitForm
        schemas={schemas.data}
        start={{ spec, cwd: recorded?.cwd ?? "", python: recorded?.interpreter ?? "" }}
      />
    </>
  );
}
