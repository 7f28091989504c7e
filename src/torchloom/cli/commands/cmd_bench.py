"""`loom bench`: run the benchmarks of the repository checkout."""

import subprocess
import sys
from pathlib import Path

import click

import torchloom
from torchloom.cli.command import LoomCommand, examples
from torchloom.errors import UserError


@click.command(
    "bench", cls=LoomCommand, epilog=examples("loom bench cli", "loom bench launch -n 10 --json")
)
@click.argument("area")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the rows and their raw samples as JSON."
)
@click.option("--only", metavar="NAME", help="Measure only this figure.")
@click.option(
    "-n", "count", type=click.IntRange(1), metavar="N", help="Number of samples; targets need 10."
)
def command(area: str, as_json: bool, only: str | None, count: int | None) -> int:
    """Run the benchmarks of one area, in a checkout of the repository.

    AREA is `cli`, `launch`, `control`, `scale`, `plane`, `checkpoint`, `recovery`,
    `programs`, `comm`, `schedulers` or `dashboard`.
    `make bench` installs the tools to compare with. Exits with 1 if a target is missed.
    """
    words = [area, *(["--json"] if as_json else [])]
    words += ["--only", only] if only is not None else []
    words += ["-n", str(count)] if count is not None else []
    runner = [sys.executable, "-m", "benchmarks.run", *words]
    return subprocess.run(runner, cwd=checkout(), check=False).returncode


def checkout() -> Path:
    """Return the folder that holds src/ and benchmarks/."""
    root = Path(torchloom.__file__).resolve().parents[2]
    if not (root / "benchmarks/run.py").is_file():
        raise NoCheckout()
    return root


class NoCheckout(UserError):
    """The benchmarks are part of the repository, not of the installed package."""

    code = "no_checkout"

    def __init__(self) -> None:
        super().__init__(
            "the benchmarks are not installed with the package; "
            "clone the repository and run `make bench` there"
        )
