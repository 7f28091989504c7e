import { useState } from "react";

import { Field } from "../ui/field";
import { FactList, Panel } from "../ui/panel";
import { packagesOf } from "./facts";
import styles from "./package-list.module.css";

/** What was installed where the job ran. */
export function PackageList({ packages }: { packages: Record<string, string> }) {
  const [words, setWords] = useState("");
  const found = packagesOf(packages, words);
  const count = Object.keys(packages).length;
  return (
    <Panel title={`${count} packages`}>
      <Field
        label="Find a package"
        type="search"
        value={words}
        hint={words ? `${found.length} of ${count}` : ""}
        onChange={(event) => setWords(event.target.value)}
      />
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- it is scrolled by keys */}
      <div className={styles.scroll} role="group" aria-label="Packages" tabIndex={0}>
        <FactList facts={found} />
      </div>
    </Panel>
  );
}
