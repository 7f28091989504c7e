"""`loom compare`: show how runs differ in configuration and results."""

from collections.abc import Sequence
from typing import Any

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.jobs.control import shown
from torchloom.cli.output import echo, echo_json, table

_FEW = 8  # letters of a commit or a digest
_MOST_PACKAGES = 20  # shown without --all


@click.command(
    "compare",
    cls=LoomCommand,
    epilog=examples("loom compare gpt-1 gpt-2", "loom compare gpt-1 gpt-2 gpt-3 --all"),
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--all", "whole", is_flag=True, help="Include all packages and loom/ metrics.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(runs: tuple[str, ...], whole: bool, as_json: bool) -> None:
    """Show how runs differ: config, results, source, packages, machine.

    Equal values are only counted. `*` marks the best value of a metric whose direction is known,
    from its name or from `run.metric(name, goal="min")`.
    """
    from torchloom.client import chosen

    found = chosen.ask("compare", runs=list(runs))
    if as_json:
        echo_json(found)
        return
    heads = ["", *(run["run_id"] for run in found["runs"])]
    echo(table(heads, lines_of(found, whole)))


def lines_of(found: dict[str, Any], whole: bool) -> list[list[str]]:
    """Return the table: one row per name, one column per run, a title row above each part."""
    runs, blank = found["runs"], [""] * (len(found["runs"]) + 1)
    lines = [["name", *(run["name"] for run in runs)], *map(_row, found["summary"])]
    parts: list[tuple[str, list[list[str]]]] = [
        (f"CONFIG, {found['same']} the same", [_row(one) for one in found["config"]]),
        ("METRICS, last (best @ step)", _metrics(found["metrics"], whole)),
        ("SOURCE", [_row(_short(one)) for one in found["git"] if _says(one["values"])]),
        ("PACKAGES", _packages(found["packages"], whole)),
        ("MACHINE", [_row(one) for one in found["environment"]]),
    ]
    for head, rows in parts:
        if rows:
            lines += [blank, [head, *blank[1:]], *rows]
    return lines


def _row(one: dict[str, Any]) -> list[str]:
    missing = one.get("missing") or [False] * len(one["values"])
    cells = zip(one["values"], missing, strict=True)
    return [one["name"], *("-" if gone or value is None else _cell(value) for value, gone in cells)]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else shown(value)


def _metrics(metrics: Sequence[dict[str, Any]], whole: bool) -> list[list[str]]:
    return [
        [one["name"], *(_metric(one, index) for index in range(len(one["last"])))]
        for one in metrics
        if whole or not one["name"].startswith("loom/")
    ]


def _metric(one: dict[str, Any], index: int) -> str:
    last, best, step = (one[name][index] for name in ("last", "best", "best_step"))
    if last is None:
        return "-"
    star = " *" if one["winner"] == index else ""
    return f"{_cell(last)} ({_cell(best)} @ {step}){star}" if best is not None else _cell(last)


def _short(one: dict[str, Any]) -> dict[str, Any]:
    values = [value[:_FEW] if _is_digest(one["name"], value) else value for value in one["values"]]
    return {**one, "values": values}


def _is_digest(name: str, value: Any) -> bool:
    return name in ("commit", "diff") and isinstance(value, str)


def _says(values: Sequence[Any]) -> bool:
    return any(value is not None for value in values)


def _packages(packages: Sequence[dict[str, Any]], whole: bool) -> list[list[str]]:
    rows = [_row(one) for one in packages]
    if whole or len(rows) <= _MOST_PACKAGES:
        return rows
    more = len(rows) - _MOST_PACKAGES
    return [*rows[:_MOST_PACKAGES], [f"and {more} more, --all", *[""] * (len(rows[0]) - 1)]]
