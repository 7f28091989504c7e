const PATHS = {
  alert: "M8 2 1.5 13.5h13zM8 6.5v3M8 11.6v.2",
  back: "M10 3 5 8l5 5",
  check: "m3 8.5 3.2 3.2L13 4.8",
  checkpoint: "M4 2.5h8v11L8 10.8 4 13.5z",
  circle: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3z",
  clock: "M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2zM8 5v3.2l2.2 1.4",
  close: "m4 4 8 8M12 4l-8 8",
  copy: "M5.5 5.5V3h7.5v7.5h-2.5M3 5.5h7.5V13H3z",
  half: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  jobs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  knob: "M3 4h4m4 0h2M3 12h2m4 0h4M9 4a1.6 1.6 0 1 0 0 .01M7 12a1.6 1.6 0 1 0 0 .01",
  more: "M3.4 8h.2M7.9 8h.2M12.4 8h.2",
  moon: "M13 9.6A5.6 5.6 0 0 1 6.4 3 5.6 5.6 0 1 0 13 9.6z",
  node: "M2.5 3.5h11v4h-11zM2.5 9.5h11v3h-11zM5 5.5h.1M5 11h.1",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  pin: "M5.5 2.5h5M6.5 2.5v4L4 9.2h8L9.5 6.5v-4M8 9.2v4.5",
  play: "M5 3.2v9.6l7.5-4.8z",
  rank: "M3 3h4v4H3zM9 3h4v4H9zM3 9h4v4H3zM9 9h4v4H9z",
  recovery: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
  resize: "M9.5 3H13v3.5M13 3 9 7M6.5 13H3V9.5M3 13l4-4",
  search: "M7 2.8a4.2 4.2 0 1 0 0 8.4 4.2 4.2 0 0 0 0-8.4zM10.2 10.2 13.5 13.5",
  state: "M3 8h7M7.5 5 10.5 8l-3 3M13 4v8",
  stop: "M4 4h8v8H4z",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1.2v1.3M8 13.5v1.3M1.2 8h1.3M13.5 8h1.3M3.2 3.2l.9.9M11.9 11.9l.9.9M12.8 3.2l-.9.9M4.1 11.9l-.9.9",
} as const;

export type IconName = keyof typeof PATHS;

/** A small picture beside a text; screen readers skip it. */
export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.6"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
