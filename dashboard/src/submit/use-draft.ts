/** A spec that is being written, in fields or as text, and the server's answer to it. */

import { useState } from "react";

import { type Draft, type Format, type Spec, useCheck } from "../api/use-spec";
import type { Problem } from "../api/wire";
import { useSettled } from "../ui/hooks";
import { unveiled, veiled } from "./values";

const PAUSE = 300; // milliseconds without a key until the server is asked

export interface Writing {
  spec: Spec;
  text: string;
  format: Format;
  problem: Problem | null;
  /** Whether the spec is what was written last: text must be read first. */
  isRead: boolean;
  write: (spec: Spec) => void;
  type: (text: string) => void;
  turn: (format: Format) => void;
}

export function useDraft(start: Spec): Writing {
  const [spec, setSpec] = useState(start);
  const [typed, setTyped] = useState<string | null>(null);
  const [format, setFormat] = useState<Format>("yaml");
  const draft: Draft = typed === null ? { spec: veiled(spec) } : { text: typed, format };
  const asked = useSettled(draft, PAUSE);
  const isBlank = typed === null && Object.keys(spec).length === 0;
  const { data, error, isPlaceholderData } = useCheck(isBlank ? null : asked);
  const isAnswered = !isPlaceholderData && JSON.stringify(asked) === JSON.stringify(draft);
  const found = typed !== null && data?.spec ? unveiled(data.spec, spec) : spec;
  const json = JSON.stringify(veiled(found), null, 2);
  const own = format === "json" ? json : isBlank ? "" : (data?.yaml ?? "");
  return {
    ...{ spec: found, text: typed ?? own, format },
    problem: isBlank ? null : (error?.problem ?? data?.refused ?? null),
    isRead: typed === null || (isAnswered && data?.spec != null),
    write: (next) => {
      setSpec(next);
      setTyped(null);
    },
    type: (text) => {
      setSpec(found); // what is hidden in the text stays known
      setTyped(text);
    },
    turn: (next) => {
      setSpec(found);
      setTyped(null);
      setFormat(next);
    },
  };
}
