import "../ui/theme/tokens.css";
import "../ui/theme/base.css";
import "./print.css";

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { beginTheme } from "../ui/theme/theme";
import type { ReportData } from "./data";
import { Report } from "./report";

beginTheme();

const root = document.getElementById("root");
const held = document.getElementById("report")?.textContent;

if (root && held) {
  createRoot(root).render(
    <StrictMode>
      <Report data={JSON.parse(held) as ReportData} />
    </StrictMode>,
  );
}
