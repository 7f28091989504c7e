/** Colours as a canvas wants them: what a token means in the theme of now. */

/** Return a token's colour, resolved. */
export function colour(token: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${token})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Return a resolved colour, thinned. */
export function faded(found: string, part: number): string {
  return found.replace(/^rgb\(([^)]*)\)$/, `rgba($1, ${part})`);
}
