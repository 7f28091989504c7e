/** The facts of a record as lines of a page; an unknown fact has no line. Pure. */

import type { Recorded } from "../api/use-record";

export type Fact = [name: string, value: string];

/** Return where the source, the interpreter and the machine of a job were. */
export function factsOf(recorded: Recorded): Fact[] {
  const { git, hardware } = recorded;
  const facts: [string, string | null | undefined][] = [
    ["Commit", git?.commit && git.commit + (git.dirty ? ", with changes that are not committed" : "")],
    ["Branch", git?.branch],
    ["Repository", git?.remote ?? git?.root],
    ["Command", recorded.argv?.join(" ")],
    ["Folder", recorded.cwd],
    ["Python", [recorded.python, recorded.interpreter].filter(Boolean).join(", ")],
    ["Torch", recorded.torch],
    ["Nodes", hardware?.nodes?.join(", ")],
    ["Machine", hardware && machineOf(hardware)],
    ["Notes", recorded.notes?.join("; ")],
  ];
  return facts.filter((fact): fact is Fact => Boolean(fact[1]));
}

/** Return packages whose names have the words, by name. */
export function packagesOf(packages: Record<string, string>, words: string): Fact[] {
  const wanted = words.trim().toLowerCase();
  return Object.entries(packages)
    .filter(([name]) => name.toLowerCase().includes(wanted))
    .sort(([a], [b]) => a.localeCompare(b));
}

/** Return the variables of a job; of most the value was not kept, for it may be a secret. */
export function variablesOf({ env }: Recorded): Fact[] {
  return (env?.names ?? []).map((name) => [name, env?.values?.[name] ?? "not kept"]);
}

function machineOf({ cpu, cores, memory_mb: memory }: NonNullable<Recorded["hardware"]>): string {
  const parts = [cpu, cores ? `${cores} cores` : "", memory ? `${Math.round(memory / 1024)} GiB of memory` : ""];
  return parts.filter(Boolean).join(", ");
}
