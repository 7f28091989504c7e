/** Colours that programs print for terminals: parts of a line, each with its colour. Pure. */

export interface Part {
  text: string;
  colour: string;
  isBold: boolean;
}

const ESCAPES = /\u001b(?:\[([\d;?]*)([A-Za-z])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|.)/g;
const COLOURS = ["faint", "red", "green", "yellow", "blue", "magenta", "cyan", "plain"];

/** Return a line in parts; what moves a cursor or names a window is left out. */
export function partsOf(message: string): Part[] {
  if (!message.includes("\u001b")) return [{ text: message, colour: "", isBold: false }];
  const parts: Part[] = [];
  let [colour, isBold, from] = ["", false, 0];
  for (const found of message.matchAll(ESCAPES)) {
    parts.push({ text: message.slice(from, found.index), colour, isBold });
    from = found.index + found[0].length;
    if (found[2] !== "m") continue;
    for (const code of (found[1] ?? "").split(";").map(Number)) {
      if (code === 0) [colour, isBold] = ["", false];
      else if (code === 1 || code === 22) isBold = code === 1;
      else if (code === 39) colour = "";
      else colour = colourOf(code) ?? colour;
    }
  }
  return [...parts, { text: message.slice(from), colour, isBold }].filter(({ text }) => text);
}

function colourOf(code: number): string | undefined {
  return (code >= 30 && code <= 37) || (code >= 90 && code <= 97) ? COLOURS[code % 10] : undefined;
}
