import type { Spec } from "../api/use-spec";
import type { Problem } from "../api/wire";
import { Choice } from "../ui/field";
import { shown } from "../ui/text/format";
import { MapPart } from "./map-part";
import type { Part } from "./parts";
import styles from "./spec-part.module.css";
import { TextPart } from "./text-part";
import { put, valueAt, wrongOf } from "./values";

interface Props {
  part: Part;
  spec: Spec;
  problem: Problem | null;
  onChange: (spec: Spec) => void;
}

/** The field of a part of the schema; a group has its own fields. */
export function SpecPart({ part, spec, problem, onChange }: Props) {
  const { path, kind } = part;
  const value = valueAt(spec, path);
  const wrong = wrongOf(problem, path);
  const name = part.name.replaceAll("_", " ");
  const change = (next: unknown) => onChange(put(spec, path, next));
  if (kind === "group") {
    return (
      <fieldset className={styles.group}>
        <legend>{name}</legend>
        {part.parts.map((one) => (
          <SpecPart key={one.path} part={one} spec={spec} problem={problem} onChange={onChange} />
        ))}
        {problem?.field === path ? <p className={styles.wrong}>{wrong}</p> : null}
      </fieldset>
    );
  }
  return (
    <div className={styles.part} data-testid="spec-part" data-path={path} data-wrong={wrong ? true : undefined}>
      {kind === "map" ? (
        <MapPart part={part} value={value} wrong={wrong} onChange={change} />
      ) : kind === "choice" ? (
        <Choice
          label={name}
          value={typeof value === "string" ? value : ""}
          wrong={wrong}
          options={[["", `default${part.usual === null ? "" : `: ${shown(part.usual)}`}`], ...part.options.map((one) => [one, one] as const)]}
          onChange={(next) => change(next || undefined)}
        />
      ) : kind === "flag" ? (
        <label className={styles.flag}>
          <input type="checkbox" checked={value === true} onChange={(event) => change(event.target.checked || undefined)} />
          {name}
          {wrong ? <span className={styles.wrong}>{wrong}</span> : null}
        </label>
      ) : (
        <TextPart part={part} value={value} wrong={wrong} onChange={change} />
      )}
    </div>
  );
}
