/** Light, dark, or as the system is. The choice is kept in this browser. */

import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";

const KEPT = "loom-theme";
const listeners = new Set<() => void>();
const dark = () => window.matchMedia("(prefers-color-scheme: dark)");

let isPrinting = false; // paper is light

/** Put the kept choice into force; before anything is drawn. */
export function beginTheme(): void {
  apply(kept());
  dark().addEventListener("change", notify);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
}

export function setTheme(theme: Theme): void {
  if (theme === "system") memory()?.removeItem(KEPT);
  else memory()?.setItem(KEPT, theme);
  apply(theme);
  notify();
}

export function useTheme(): Theme {
  return useSyncExternalStore(listen, kept);
}

/** Whether the dark theme is shown; a canvas is painted again when this changes. */
export function useDark(): boolean {
  return useSyncExternalStore(listen, () => {
    const theme = isPrinting ? "light" : kept();
    return theme === "system" ? dark().matches : theme === "dark";
  });
}

function kept(): Theme {
  const found = memory()?.getItem(KEPT);
  return found === "light" || found === "dark" ? found : "system";
}

/** A page in a frame of another site may have no storage. */
function memory(): Storage | null {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

function apply(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function print(begins: boolean): void {
  isPrinting = begins;
  apply(begins ? "light" : kept());
  notify();
}

function notify(): void {
  listeners.forEach((listener) => listener());
}

function listen(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

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
