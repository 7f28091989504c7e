/** How live the page is, in one word and a number: what its dot shows. Pure. */

import type { Link } from "./link";

const FRESH = 4; // seconds of silence that are normal between two heartbeats
const LATE = 1.5; // seconds the server itself may be behind

export interface Health {
  state: "live" | "behind" | "lost";
  seconds: number;
  why: string;
}

/** Return how live a link is at a time of the same clock, in milliseconds. */
export function healthOf(link: Link, now: number): Health {
  const silent = link.receivedAt ? (now - link.receivedAt) / 1000 : 0;
  if (link.phase !== "open") {
    const why = link.receivedAt ? "The plane does not answer; trying again." : "Connecting.";
    return { state: "lost", seconds: silent, why };
  }
  if (silent > FRESH) return { state: "behind", seconds: silent, why: "The server has sent nothing for a while." };
  if (link.behind > LATE) {
    return { state: "behind", seconds: link.behind, why: "The server cannot read new data." };
  }
  if (!link.weaver) {
    return { state: "behind", seconds: silent, why: "The weaver does not answer; numbers are not updated." };
  }
  return { state: "live", seconds: 0, why: "Data is current." };
}
