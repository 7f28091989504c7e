import "../ui/theme/tokens.css";
import "../ui/theme/base.css";

import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { Live, streamAddress } from "../api/live";
import { LiveContext } from "../api/use-live";
import { beginTheme } from "../ui/theme/theme";
import { App } from "./app";

beginTheme();

// Nothing polls: what changes comes over the socket.
const queries = new QueryClient({
  defaultOptions: {
    queries: { retry: false, staleTime: Infinity, refetchOnWindowFocus: false, refetchOnReconnect: false },
  },
});
const live = new Live(streamAddress(location));
const root = document.getElementById("root");

if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <LiveContext value={live}>
          <App />
        </LiveContext>
      </QueryClientProvider>
    </StrictMode>,
  );
}
