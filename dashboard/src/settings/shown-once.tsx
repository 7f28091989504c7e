import type { ReactNode } from "react";

import { Button } from "../ui/button";
import { Foot } from "../ui/dialog";
import { CopyLine } from "../ui/text/copy";
import styles from "./lines.module.css";

interface Props {
  text: string;
  until: string | null;
  onClose: () => void;
  children: ReactNode;
}

/** A secret, this once. */
export function ShownOnce({ text, until, onClose, children }: Props) {
  return (
    <div className={styles.once} data-testid="secret">
      <p>{children}</p>
      <CopyLine text={text} label="Copy" />
      <p className={styles.soft}>{until ? `Valid until ${new Date(until).toLocaleString()}.` : "Valid until it is revoked."}</p>
      <Foot>
        <Button tone="main" onClick={onClose}>
          Done
        </Button>
      </Foot>
    </div>
  );
}
