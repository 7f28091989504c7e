import { useState } from "react";

import { Dialog } from "../ui/dialog";
import { isPossible } from "./deeds";
import { KeyCaps } from "./key-caps";
import styles from "./key-sheet.module.css";
import { TABLE } from "./table";

const PARTS = [...new Set(TABLE.map(({ part }) => part))];

/** All shortcuts, and which of them do something on this page. */
export function KeySheet({ onClose }: { onClose: () => void }) {
  const [here] = useState(() => new Set(TABLE.filter(({ deed }) => isPossible(deed)).map(({ keys }) => keys)));
  const shown = TABLE.filter(({ keys, part }) => part !== "Go to" || here.has(keys)); // a page that is not ours is none
  return (
    <Dialog title="Keys" onClose={onClose}>
      <div className={styles.parts} data-testid="key-sheet">
        {PARTS.map((part) => (
          <section key={part} aria-label={part}>
            <h3>{part}</h3>
            <dl>
              {shown.filter((one) => one.part === part).map(({ keys, words }) => (
                <div key={keys} data-testid="key" data-keys={keys} data-here={here.has(keys)}>
                  <dt>
                    <KeyCaps keys={keys} />
                  </dt>
                  <dd>
                    {words}
                    {here.has(keys) ? null : <span>not here</span>}
                  </dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <p className={styles.note}>In a text field, keys type letters; Escape leaves the field. Anything that changes a job asks for confirmation; Escape closes the question.</p>
    </Dialog>
  );
}
