"""What ranks left to say on hosts that do not see our log folder, and what went wrong first."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom.launch.errorfile import ErrorReport, first_error
from torchloom.launch.frames import Message
from torchloom.launch.ledger import Place
from torchloom.launch.logfiles import LogFiles


class Reports:
    """The errors of a run's ranks, the evidence against its nodes, and outputs sent from afar."""

    def __init__(self, log_dir: str) -> None:
        self._log_dir = Path(log_dir)
        self._errors: dict[Place, ErrorReport] = {}
        self._evidence: dict[str, str] = {}  # of lost nodes, by the reason of the end they may be
        self._logs: dict[str, LogFiles] = {}

    def failed(self, place: Place, rank: Mapping[str, Any]) -> None:
        """Keep the error file of a rank, here too when it was written elsewhere."""
        report = self._errors[place] = ErrorReport(*rank["error"])
        if rank["logs"]:
            with contextlib.suppress(OSError):
                (self._log_dir / rank["logs"] / "error.json").write_text(report.text)

    def forget(self, place: Place) -> None:
        """A rank has a new life: what went wrong before is no longer its error."""
        self._errors.pop(place, None)

    def node_lost(self, name: str, evidence: str) -> None:
        self._evidence[f"node_lost_{name}"] = f"{name}: {evidence}"

    def first(self, reason: str) -> str | None:
        """Return what went wrong first; on a lost node's account its peers fail only later."""
        return self._evidence.get(reason) or first_error(self._errors.values())

    def output(self, message: Message) -> None:
        """Write down what a rank of another host printed."""
        self._log(message["logs"]).write(message["stream"], message["data"].encode("latin-1"))

    def output_end(self, message: Message) -> None:
        self._log(message["logs"]).close()

    def close(self) -> None:
        for log in self._logs.values():
            log.close()

    def _log(self, logs: str) -> LogFiles:
        if logs not in self._logs:
            self._logs[logs] = LogFiles(self._log_dir / logs)
        return self._logs[logs]
