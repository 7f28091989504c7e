import react from "@vitejs/plugin-react";
import type { ProxyOptions } from "vite";
import { defineConfig } from "vitest/config";

import { report } from "./report.config";

// `npm run dev` serves the page from here and asks a plane for the rest.
const plane = process.env.LOOM_URL ?? "http://127.0.0.1:8787";

/** A plane answers pages of its own origin only. */
const asked: ProxyOptions = {
  target: plane,
  changeOrigin: true,
  ws: true,
  headers: { Origin: plane },
};

export default defineConfig({
  plugins: [react(), report()],
  build: { target: "es2022", assetsInlineLimit: 0, chunkSizeWarningLimit: 900 },
  server: {
    host: "127.0.0.1",
    proxy: { "/api": asked, "/login": asked, "/docs": asked, "/manual": asked, "/openapi.json": asked },
  },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});
