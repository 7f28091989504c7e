import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import { flushSync } from "react-dom";

import { Button } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { KeyCaps } from "./key-caps";
import { fitting, offers, type Offer } from "./offers";
import styles from "./palette.module.css";
import { moved } from "./rows";

interface Props {
  onClose: () => void;
  onKeys: () => void;
}

/** Actions on this page, to choose from by typing; it is done by what does it on the page. */
export function Palette({ onClose, onKeys }: Props) {
  const [all] = useState(offers);
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const found = fitting(all, words);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []); // one types at once
  const choose = (offer: Offer | undefined) => {
    if (!offer) return;
    flushSync(onClose); // the page is itself again before anything is pressed
    offer.run();
  };
  const pressed = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by === undefined && event.key !== "Enter") return;
    event.preventDefault();
    if (by === undefined) choose(found[at]);
    else setAt(moved(found.length, at, by));
  };
  return (
    <Dialog title="Actions on this page" onClose={onClose}>
      <input
        ref={field}
        className={styles.field}
        type="text"
        role="combobox"
        aria-label="Search actions"
        aria-expanded="true"
        aria-controls="palette-offers"
        aria-activedescendant={found.length ? `offer-${at}` : undefined}
        placeholder="Type part of its name"
        data-testid="palette"
        value={words}
        onKeyDown={pressed}
        onChange={(event) => {
          setWords(event.target.value);
          setAt(0);
        }}
      />
      <div id="palette-offers" role="listbox" aria-label="Actions" className={styles.offers}>
        {found.map((offer, index) => (
          <div
            key={`${offer.part} ${offer.words}`}
            id={`offer-${index}`}
            ref={(element) => {
              if (index === at) element?.scrollIntoView({ block: "nearest" });
            }}
            role="option"
            tabIndex={-1}
            aria-selected={index === at}
            data-testid="offer"
            onClick={() => choose(offer)}
            onKeyDown={pressed}
          >
            <span className={styles.part}>{offer.part}</span>
            <span>{offer.words}</span>
            {offer.keys ? <KeyCaps keys={offer.keys} /> : null}
          </div>
        ))}
      </div>
      {found.length ? null : <p className={styles.none}>No action matches.</p>}
      <footer className={styles.foot}>
        <Button tone="quiet" onClick={onKeys}>
          All keys <KeyCaps keys="?" />
        </Button>
      </footer>
    </Dialog>
  );
}
