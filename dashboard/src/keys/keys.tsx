import { useState } from "react";

import { Icon } from "../ui/icon";
import { KeySheet } from "./key-sheet";
import styles from "./keys.module.css";
import { Palette } from "./palette";
import type { Shown } from "./table";
import { useKeys } from "./use-keys";

/** The shortcuts of the page, and a button for those who have no keys. */
export function Keys() {
  const [shown, show] = useState<Shown | null>(null);
  useKeys(show);
  const close = () => show(null);
  return (
    <>
      <button
        type="button"
        className={styles.open}
        data-testid="palette-open"
        aria-label="Actions on this page"
        title="Actions on this page ( . )"
        onClick={() => show("palette")}
      >
        <Icon name="more" />
      </button>
      {shown === "sheet" ? <KeySheet onClose={close} /> : null}
      {shown === "palette" ? <Palette onClose={close} onKeys={() => show("sheet")} /> : null}
    </>
  );
}
