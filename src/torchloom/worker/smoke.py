"""A smoke test of the ranks: `python -m torchloom.worker.smoke`, with or without a launcher.

Exit code 0: the ranks trained together. 1: they did not; standard error has the reason. 2: misuse.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom.errors import LoomError, UserError

if TYPE_CHECKING:
    from torchloom.worker.workload import WorkloadReport

MODELS = ("mlp", "cnn", "transformer")
STEPS = 40


class SmokeNeedsTorch(UserError):
    """The interpreter has no torch."""

    code = "no_torch"

    def __init__(self) -> None:
        super().__init__(f"{sys.executable} has no torch: pip install 'torchloom[torch]' adds it")


def main(words: Sequence[str]) -> int:
    """Train as the command line says; rank 0 prints the report."""
    parser = argparse.ArgumentParser(prog="torchloom.worker.smoke", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--backend", help="instead of the device's own")
    parser.add_argument("--report", type=Path, help="a file for the report, as JSON")
    chosen = parser.parse_args(words)
    try:
        return _run(chosen.model, chosen.steps, chosen.backend, chosen.report)
    except LoomError as error:
        sys.stderr.write(f"smoke test: {error}\n")
        return error.exit_code


def _run(model: str, steps: int, backend: str | None, path: Path | None) -> int:
    if steps < 1:
        raise UserError(f"--steps {steps}: at least one is needed for a loss that falls")
    if importlib.util.find_spec("torch") is None:
        raise SmokeNeedsTorch()
    from torchloom.worker import dist, workload

    rank = dist.setup_torch(backend=backend)
    report = workload.train(model, steps)
    dist.cleanup()
    if rank == 0:
        _write(report, path)
    return 1 if report.error else 0


def _write(report: "WorkloadReport", path: Path | None) -> None:
    sys.stdout.write(text(report))
    sys.stdout.flush()
    if report.error:
        sys.stderr.write(f"smoke test failed: {report.error}\n")
    if path is not None:
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(json.dumps(report.to_dict()))
        partial.replace(path)


def text(report: "WorkloadReport") -> str:
    """Return the report as text."""
    heads = ("rank", "local", "node", "host", "pid", "device", "parameters")
    rows = [
        (row.rank, row.local_rank, row.node, row.host, row.pid, row.device, row.digest)
        for row in report.ranks
    ]
    cells = [heads, *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    before, after = report.losses
    lines.append(
        f"{report.model}, {report.steps} steps, {report.world_size} x {report.ranks[0].device}, "
        f"backend {report.backend}: loss {before:.4f} -> {after:.4f}, "
        f"{report.samples_per_second:,.0f} samples/s"
    )
    lines.append("FAILED" if report.error else "ok: all ranks have the same parameters")
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
