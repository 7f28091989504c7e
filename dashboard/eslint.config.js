import a11y from "eslint-plugin-jsx-a11y";
import hooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

const FEATURES = [
  ...["jobs", "job", "control", "curves", "ranks", "logs", "checkpoints", "events", "spec"],
  ...["experiments", "submit", "cluster", "settings", "keys"],
];
const DOORS = ["app", "report"]; // what puts features together: the page, and the file of a run

/** A feature may import `charts`, `ui` and `api`, never another feature, never what puts them together. */
const walls = FEATURES.map((feature) => ({
  files: [`src/${feature}/**`],
  rules: {
    "no-restricted-imports": [
      "error",
      {
        patterns: [...DOORS, ...FEATURES.filter((other) => other !== feature)].map((other) => ({
          group: [`../${other}/**`, `../../${other}/**`],
          message: "A feature knows charts, ui and api only; app puts features together.",
        })),
      },
    ],
  },
}));

/** How curves are drawn, for whichever feature shows some. */
const charts = {
  files: ["src/charts/**"],
  rules: {
    "no-restricted-imports": [
      "error",
      {
        patterns: [...DOORS, ...FEATURES].map((other) => ({
          group: [`../${other}/**`, `../../${other}/**`],
          message: "charts stands below the features.",
        })),
      },
    ],
  },
};

const floor = ["ui", "api"].map((room) => ({
  files: [`src/${room}/**`],
  rules: {
    "no-restricted-imports": [
      "error",
      {
        patterns: [...DOORS, "charts", ...FEATURES, ...(room === "api" ? ["ui"] : ["api"])].map((other) => ({
          group: [`../${other}/**`, `../../${other}/**`],
          message: "ui and api stand below everything, and apart from each other.",
        })),
      },
    ],
  },
}));

export default tseslint.config(
  { ignores: ["dist", "node_modules", "types", "*.js"] },
  ...tseslint.configs.strictTypeChecked,
  ...tseslint.configs.stylisticTypeChecked,
  hooks.configs.flat["recommended-latest"],
  a11y.flatConfigs.recommended,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      "@typescript-eslint/no-unsafe-enum-assignment": "off", // uPlot's enums are types alone
      "react-hooks/incompatible-library": "off", // nothing here is compiled by the React compiler
      "max-lines": ["error", { max: 250 }],
    },
  },
  ...walls,
  charts,
  ...floor,
);
