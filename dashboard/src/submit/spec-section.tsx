import type { ReactNode } from "react";

import type { Spec } from "../api/use-spec";
import type { Problem } from "../api/wire";
import type { Section } from "./parts";
import { SpecPart } from "./spec-part";
import styles from "./spec-section.module.css";
import { valueAt, wrongOf } from "./values";

interface Props {
  section: Section;
  isFirst: boolean;
  spec: Spec;
  problem: Problem | null;
  onChange: (spec: Spec) => void;
  /** Fields that are no part of the spec. */
  children?: ReactNode;
}

/** Fields that belong together; folded until somebody wants them, or has filled one in. */
export function SpecSection({ section, isFirst, spec, problem, onChange, children }: Props) {
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
