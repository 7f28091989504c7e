"""Run a bench: interleave its samples, judge them, print a table or the rows.

python -m benchmarks.run AREA [--json] [--only NAME] [-n N] [--peers DIR] [--out FILE]
"""

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.figure import CannotMeasure, Figure, Lab, Subject
from benchmarks.verdict import row

HERE = Path(__file__).resolve().parent
AREAS = (
    *("cli", "launch", "control", "scale", "plane", "checkpoint", "recovery", "dashboard"),
    *("schedulers", "programs", "comm"),
)


def main(words: Sequence[str] | None = None) -> int:
    """Measure one area; return 0 when every target is met, else 1."""
    options = parse(words)
    targets = tomllib.loads((HERE / "targets.toml").read_text())[options.area]
    bench = importlib.import_module(f"benchmarks.{options.area}")
    options.n = options.n or bench.SAMPLES
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))  # and tidy up
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as scratch, ExitStack() as at_end:
        lab = make_lab(options, Path(scratch), at_end)
        figures = [figure for figure in bench.figures(lab) if options.only in (None, figure.name)]
        if not figures:
            print(f"no figure {options.only!r}; there are: {', '.join(targets)}", file=sys.stderr)
            return 2
        samples = interleave(figures, options.n)
    origin = {"machine": machine(), "commit": commit()}
    rows = [judge(options.area, figure, samples, targets) | origin for figure in figures]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(as_json(rows))
    print(as_json(rows) if options.json else table(rows), flush=True)
    return 1 if any(row["met"] is False for row in rows) else 0


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="loom bench", description="Measure beside the peers.")
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("--json", action="store_true", help="print the rows with raw samples")
    parser.add_argument("--only", metavar="NAME", help="one figure")
    parser.add_argument("-n", type=int, help="samples a figure; under 10 none is met")
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".build/peers")
    parser.add_argument("--out", type=Path, help="write the rows to this file, too")
    return parser.parse_args(words)


def make_lab(options: argparse.Namespace, scratch: Path, at_end: ExitStack) -> Lab:
    """Return the lab: a state folder of its own, everything else as the user has it."""
    env = {**os.environ, "LOOM_HOME": str(scratch / "home")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # programs that pip installed have their byte code
    ours = Path(sys.prefix) / "bin"
    return Lab(ours, options.peers.absolute() / "bin", scratch, options.n, env, at_end)


def interleave(figures: Sequence[Figure], n: int) -> Mapping[Subject, list[float]]:
    """Sample every subject once a round, so that what else the machine does meets all of them.

    The first round warms disks and byte code and is not counted. A subject that fails is left
    out from then on and keeps no samples. One that takes `most` samples has its turns spread out.
    Those that take all samples in one run follow when the rounds are over.
    """
    subjects = dict.fromkeys(s for f in figures for s in (f.ours, f.peer) if s is not None)
    samples: dict[Subject, list[float]] = {subject: [] for subject in subjects}
    able = [subject for subject in subjects if subject.take_all is None]
    for number in range(n + 1):
        for subject in [subject for subject in able if has_turn(subject, number, n)]:
            try:
                value = subject.sample()
            except CannotMeasure as error:
                print(f"not measured: {error}", file=sys.stderr)
                able.remove(subject)
                samples[subject].clear()
                continue
            if number:
                samples[subject].append(value)
    for subject in subjects:
        if subject.take_all is not None:
            try:
                samples[subject] = list(subject.take_all())
            except CannotMeasure as error:
                print(f"not measured: {error}", file=sys.stderr)
    return samples


def has_turn(subject: Subject, number: int, n: int) -> bool:
    """Tell whether a subject is sampled in a round: always, or `most` times of n."""
    most = n if subject.most is None else min(subject.most, n)
    return number == 0 or number * most // n > (number - 1) * most // n


def judge(
    area: str,
    figure: Figure,
    samples: Mapping[Subject, list[float]],
    targets: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the row of one figure."""
    beside = samples[figure.peer] if figure.peer else []
    return row(area, figure, samples[figure.ours], beside, targets.get(figure.name))


def machine() -> str:
    """Return what was measured on, in one line."""
    names = [platform.processor() or platform.machine()]
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = cpus.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = next(iter(names), platform.machine())
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def commit() -> str:
    """Return the commit that was measured, marked when the tree differs from it."""
    head = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--", ":/src", ":/benchmarks")
    return f"{head}-dirty" if changes else head


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if done.returncode else "")


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a bare array."""
    return json.dumps(rows, indent=1) + "\n"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows for people."""
    lines = [f"{'figure':20} {'ours':>9} {'peer':>9} {'ratio':>7}  {'target':22} met"]
    for item in rows:
        figures = [_short(item[key]) for key in ("ours", "peer", "ratio")]
        said = {k: v for k, v in (item["target"] or {}).items() if k not in ("stat", "reported")}
        goal = " ".join(f"{k}={v}" for k, v in said.items())
        goal = (
            goal.replace("at_most=", "<=")
            .replace("at_least=", ">=")
            .replace("of_peer_<=", "ratio <=")
        )
        lines.append(
            f"{item['name']:20} {figures[0]:>9} {figures[1]:>9} {figures[2]:>7}  "
            f"{goal:22} {_WORDS[item['met']]}"
        )
        if item["peer_command"]:
            lines.append(f"    {item['unit']}, n={item['n']}, beside {item['peer_command']}")
        else:
            lines.append(f"    {item['unit']}, n={item['n']}, {(item['target'] or {}).get('stat')}")
    return "\n".join(lines)


_WORDS = {True: "yes", False: "NO", None: "reported"}


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.3f}"
        if abs(value) >= 0.01
        else f"{value:.2g}"
    )


if __name__ == "__main__":
    sys.exit(main())
