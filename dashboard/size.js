/** Refuse a bundle whose JavaScript is larger than people on a slow link should wait for. */
import { readFileSync, readdirSync } from "node:fs";
import { gzipSync } from "node:zlib";

const MOST = 300_000; // bytes, gzipped, of all scripts together

const folder = new URL("dist/assets/", import.meta.url);
const scripts = readdirSync(folder).filter((name) => name.endsWith(".js"));
const total = scripts
  .map((name) => gzipSync(readFileSync(new URL(name, folder))).length)
  .reduce((sum, size) => sum + size, 0);

console.log(`${(total / 1000).toFixed(1)} kB of JavaScript, gzipped; ${MOST / 1000} kB at most`);
process.exitCode = total > MOST ? 1 : 0;
