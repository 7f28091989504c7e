"""Write README's table of figures from docs/evidence; `--check` only says whether it is that."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- figures: `make figures` -->\n", "<!-- end of figures -->"


@dataclass(frozen=True)
class Row:
    """A figure that README shows, by its bench and name, and what it is in words."""

    area: str
    name: str
    words: str


ROWS = (
    Row("launch", "first-step-warm", "to the first step of 4 ranks, ours warm, theirs cold"),
    Row("launch", "first-step-cold", "to the first step of 4 ranks, both cold"),
    Row("recovery", "kill-to-step-torchrun", "from `kill -9` to all 4 ranks past the next step"),
    Row("recovery", "kill-to-step-torchft", "the same; survivors alone under torchft"),
    Row("recovery", "state-shm", "400 MB of state into a new rank, compared with DCP's load"),
    Row("checkpoint", "stall-dcp", "training stalled by saving 400 MB, compared with `dcp.save`"),
    Row("checkpoint", "stall-async", "the same, compared with `dcp.async_save`"),
    Row("control", "log-wandb", "to log five numbers, wandb offline"),
    Row("control", "log-mlflow", "to log five numbers, mlflow on SQLite"),
    Row("plane", "ingest-sqlite", "to store a point"),
    Row("plane", "chart", "to read a chart of ten million points"),
    Row("cli", "help", "for `--help`"),
    Row("schedulers", "plan-1000", "to plan 1,000 replicas for Slurm"),
)


def main(words: list[str]) -> int:
    """Bring README up to date, or say that it is not."""
    path = ROOT / "README.md"
    text = path.read_text()
    wanted = rendered(text)
    if "--check" in words:
        return int(text != wanted)
    path.write_text(wanted)
    return 0


def rendered(text: str) -> str:
    """Return README with the table of the present evidence."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def table() -> str:
    """Return a row for each figure there is evidence of."""
    lines = ["| | torchLoom | | times |\n|---|---|---|---|\n"]
    for row in ROWS:
        found = evidence(row)
        if found is not None and found["peer"] is not None:
            lines.append(line(row, found))
    return "".join(lines)


def evidence(row: Row) -> dict[str, Any] | None:
    """Return what was measured of a figure, if it was."""
    path = ROOT / "docs" / "evidence" / f"bench-{row.area}.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return next((one for one in found if one["name"] == row.name), None)


def line(row: Row, found: dict[str, Any]) -> str:
    unit = found["unit"].split(",")[0].split()[0]
    peer = f"{found['peer_name']} {found['peer_version'].partition('+')[0]}".strip()
    ours, theirs = (number(found[who]) for who in ("ours", "peer"))
    return f"| {row.words} | {ours} {unit} | {theirs} {unit}, {peer} | {times(found['ratio'])} |\n"


def number(value: float) -> str:
    """Return a number as people read it: three digits count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio: float) -> str:
    return f"{1 / ratio:,.0f}" if ratio < 0.1 else f"{1 / ratio:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
