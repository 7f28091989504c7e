/** The command that submits the same, once the text is saved. Pure. */

/** Return what to type; a folder is gone to first. */
export function commandFor(name: string, cwd: string): string {
  const file = `${name || "job"}.yaml`;
  return `${cwd ? `cd ${quoted(cwd)} && ` : ""}loom submit ${quoted(file)}`;
}

function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}
