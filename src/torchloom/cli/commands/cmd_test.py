"""`loom test`: train a small model on several ranks to check this machine."""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from torchloom.cli.command import LoomCommand, Number, examples
from torchloom.cli.output import echo_json
from torchloom.errors import Failure, UserError
from torchloom.launch.host import devices
from torchloom.settings import environment

MODULE = "torchloom.worker.smoke"
ENOUGH = "2"  # ranks without accelerators: a single one would not communicate


@click.command(
    "test",
    cls=LoomCommand,
    epilog=examples("loom test -n 4", "loom test -n 2 --model transformer --backend gloo"),
)
@click.option("-n", "--np", "total", metavar="N", help="Ranks: a number, gpu, cpu or auto.")
@click.option(
    "--steps", type=Number(1), default=40, show_default=True, metavar="N", help="Training steps."
)
@click.option(
    "--model",
    type=click.Choice(["mlp", "cnn", "transformer"]),
    default="mlp",
    show_default=True,
    help="Model to train.",
)
@click.option("--backend", metavar="B", help="nccl, xccl, mpi or gloo; default: the device's.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON report; other output goes to stderr."
)
def command(total: str | None, steps: int, model: str, backend: str | None, as_json: bool) -> int:
    """Train a small model on synthetic data with N ranks, started as by `loom launch`.

    Exits with 1 if the ranks end with different parameters or the loss does not fall.
    """
    if importlib.util.find_spec("torch") is None:
        raise NoTorchToTest()
    words = ["--steps", str(steps), "--model", model]
    words += ["--backend", backend] if backend else []
    if not as_json:
        return _launch(total, words)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        with _output_aside():
            code = _launch(total, [*words, "--report", str(path)])
        echo_json(_report(path, code))
        return code


class NoTorchToTest(UserError):
    """Nothing can be trained without torch."""

    code = "no_torch"

    def __init__(self) -> None:
        super().__init__("torch is not installed: pip install 'torchloom[torch]' adds it")


def _launch(total: str | None, words: list[str]) -> int:
    """Run `loom launch -n N -m torchloom.worker.smoke ...`."""
    from torchloom.cli.commands.cmd_launch import command as launch

    if total is None and not devices.visible(environment()):
        total = ENOUGH
    count = ["-n", total] if total is not None else []
    with launch.make_context("loom test", [*count, "-m", MODULE, *words]) as context:
        code: int = launch.invoke(context)
    return code


@contextlib.contextmanager
def _output_aside() -> Iterator[None]:
    """Redirect the output of the ranks to stderr: stdout is for the report."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _report(path: Path, code: int) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise Failure(f"the ranks ended with code {code} before rank 0 could report") from None
    return report
