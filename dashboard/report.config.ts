/** The page of `loom export`: one file with everything in it, built beside the dashboard. */

import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { resolve } from "node:path";

import react from "@vitejs/plugin-react";
import { build, type Plugin, type Rollup } from "vite";

const [ENTRY, PAGE] = ["src/report/main.tsx", "report.html"];
const WITHIN = 1e9; // bytes of a picture that is put into the file: any

/** Return what builds the page whenever the dashboard is built. */
export function report(): Plugin {
  let [root, out] = ["", ""];
  return {
    name: "loom:report",
    apply: "build",
    configResolved(config) {
      root = config.root;
      out = resolve(config.root, config.build.outDir);
    },
    async closeBundle() {
      const [script, style] = await compiled(root);
      const page = await readFile(resolve(root, PAGE), "utf8");
      await writeFile(resolve(out, PAGE), filled(page, script, style));
    },
  };
}

async function compiled(root: string): Promise<[script: string, style: string]> {
  const made = (await build({
    root,
    configFile: false,
    logLevel: "warn",
    plugins: [react()],
    build: {
      write: false,
      target: "es2022",
      cssCodeSplit: false,
      modulePreload: false,
      copyPublicDir: false,
      assetsInlineLimit: WITHIN,
      chunkSizeWarningLimit: 900,
      rollupOptions: { input: resolve(root, ENTRY), output: { format: "iife", inlineDynamicImports: true } },
    },
  })) as Rollup.RollupOutput;
  const scripts = made.output.flatMap((one) => (one.type === "chunk" ? [one.code] : []));
  const styles = made.output.flatMap((one) =>
    one.type === "asset" && one.fileName.endsWith(".css") ? [String(one.source)] : [],
  );
  return [scripts.join("\n"), styles.join("\n")];
}

/** Put both into the page, and a policy by which nothing else runs and nothing is loaded. */
function filled(page: string, code: string, rules: string): string {
  const script = code.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
  const style = rules.replaceAll("</style", "<\\/style");
  const policy = [
    "default-src 'none'",
    `script-src ${digest(script)}`,
    `style-src ${digest(style)}`,
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; ");
  return page
    .replace("__POLICY__", () => policy)
    .replace("__STYLE__", () => style)
    .replace("__SCRIPT__", () => script);
}

function digest(text: string): string {
  return `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
}
