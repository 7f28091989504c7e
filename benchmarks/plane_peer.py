"""MLflow in a process and an environment of its own, asked by lines."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.control import version
from benchmarks.figure import CannotMeasure, Lab, Subject, asked, once

HERE = Path(__file__).parent


Word = str | Callable[[], str]  # one that is found out when it is needed


def mlflow(lab: Lab, command: str, count: int, *words: Word, most: int | None = None) -> Subject:
    """Return what MLflow takes; `count` is how much it is asked for at a time."""
    home = lab.peers.parent.with_name("trackers") / "bin"

    @once
    def process() -> "subprocess.Popen[str]":
        folder = lab.scratch / f"mlflow-{words[0]}"
        folder.mkdir()
        told = [word if isinstance(word, str) else word() for word in words]
        return lab.at_end.enter_context(serving(lab, home, folder, *told))

    def sample() -> float:
        excuse = "mlflow does not answer; `make bench T=plane` installs it"
        return asked(process(), str(count), excuse)

    return Subject(command, sample, "mlflow", version(home, "mlflow"), most)


@contextlib.contextmanager
def serving(
    lab: Lab, home: Path, folder: Path, what: str, *words: str
) -> Iterator["subprocess.Popen[str]"]:
    """Start MLflow; it is gone at the end."""
    if not (home / "python").exists():
        raise CannotMeasure(f"{home} is not there; `make bench T=control` installs the peers")
    with subprocess.Popen(
        [str(home / "python"), str(HERE / "plane_mlflow.py"), what, str(folder), *words],
        env=dict(lab.env),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise CannotMeasure("mlflow cannot be set up")
            yield process
        finally:
            process.kill()
