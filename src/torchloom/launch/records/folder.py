"""A run's folder: its files, written so that no reader sees half of anything."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure
from torchloom.launch.records.record import RECORD_DAMAGED, RunRecord
from torchloom.launch.records.request import LaunchRequest
from torchloom.specs.api import AppState
from torchloom.unix import is_private, make_private, open_file

_NEW = ".new-"  # a folder under construction; `ls` does not see it
_DRAFT = "~"  # between an app's id and what distinguishes two of its folders under construction
_AGREED = "agreed"
_LONGEST = 1 << 26  # bytes of a record, an app or a request
_GONE = ".rm-"  # a folder being removed


class RunFolder:
    """`$LOOM_HOME/runs/ID`: the app, the request, its record, its events, its logs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def app_id(self) -> str:
        name = self.path.name
        return name.removeprefix(_NEW).rpartition(_DRAFT)[0] if name.startswith(_NEW) else name

    @classmethod
    def named(cls, app_id: str) -> "RunFolder":
        return cls(settings.runs_dir() / app_id)

    @classmethod
    def create(
        cls, request: LaunchRequest, app: Mapping[str, Any], record: RunRecord
    ) -> "RunFolder":
        """Make the folder under a hidden name; `publish` shows it to the world.

        Two that are made for one app do not meet before that, and only one of them is shown.
        """
        draft = f"{os.getpid()}-{os.urandom(4).hex()}"
        folder = cls(settings.runs_dir() / f"{_NEW}{request.app_id}{_DRAFT}{draft}")
        try:
            folder.path.mkdir(parents=True, mode=0o700)
            folder._write_json("app.json", app)
            folder._write_json("request.json", request.to_dict())
            folder._write_json("status.json", record.to_dict())
        except OSError as error:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise StateNotWritable(settings.runs_dir(), error) from error
        return folder

    def publish(self) -> "RunFolder":
        """Give the folder its name: from now on the app exists. One that does cannot be made."""
        final = self.path.with_name(self.app_id)
        self.path.rename(final)
        return RunFolder(final)

    def agree(self, attempt: int = 0) -> None:
        """Note that the submitter knows of the run: what is not agreed on is unmade.

        An incarnation that resumes another one is agreed on by itself.
        """
        with contextlib.suppress(OSError):  # a full disk does not keep it from running
            (self.path / _agreed(attempt)).touch(0o600)

    def is_agreed(self, attempt: int = 0) -> bool:
        return (self.path / _agreed(attempt)).exists()

    def exists(self) -> bool:
        return (self.path / "app.json").exists()

    def app(self) -> dict[str, Any]:
        """Return the app as it was submitted."""
        return self._read_json("app.json")

    def request(self) -> LaunchRequest:
        return LaunchRequest.from_dict(self._read_json("request.json"))

    def record(self) -> RunRecord:
        """Return the newest record; one the disk had no room for waits in the runtime folder."""
        with contextlib.suppress(OSError, ValueError):
            if is_private((refuge := self._refuge()).parent):
                with open_file(refuge) as file:
                    return RunRecord.from_dict(json.loads(file.read(_LONGEST)))
        return RunRecord.from_dict(self._read_json("status.json"))

    def damaged(self) -> RunRecord:
        """Return what can be said of a run whose record a crash or a disk has spoiled."""
        made = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        return RunRecord(
            id=self.app_id,
            name=self.app_id.rpartition("-")[0] or self.app_id,
            session="",
            owner="",
            host="",
            log_dir=str(self.path / "logs"),
            created_at=made.isoformat(timespec="milliseconds"),
            state=AppState.FAILED,
            reason=RECORD_DAMAGED,
        )

    def write_record(self, record: RunRecord) -> None:
        """Keep the record: in the folder or, when that cannot be written, in the runtime folder."""
        try:
            self._write_json("status.json", record.to_dict())
        except OSError:
            refuge = self._refuge()
            make_private(refuge.parent)
            _replace(refuge, json.dumps(record.to_dict()).encode())
        else:
            with contextlib.suppress(OSError):
                self._refuge().unlink(missing_ok=True)

    def add_event(self, kind: str, **facts: Any) -> None:
        """Append to the run's own history; a full disk costs the event, not the run."""
        line = json.dumps({"time": now(), "event": kind, **facts}) + "\n"
        with contextlib.suppress(OSError), open(self.path / "events.jsonl", "a") as file:
            file.write(line)

    def events(self) -> list[dict[str, Any]]:
        """Return the run's history; a line torn by a crash ends it."""
        found: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError, ValueError):
            for line in (self.path / "events.jsonl").read_text().splitlines():
                found.append(json.loads(line))
        return found

    def ask_cancel(self, by: str, reason: str, signum: int) -> None:
        """Write why the run is about to be stopped; the first reason stands."""
        text = json.dumps({"time": now(), "by": by, "reason": reason, "signal": int(signum)})
        partial = self.path / f"cancel.json.{os.getpid()}.partial"
        with contextlib.suppress(OSError):  # most often: a reason is there already
            try:
                partial.write_text(text)
                os.link(partial, self.path / "cancel.json")  # whole, or not at all
            finally:
                partial.unlink(missing_ok=True)

    def cancel_request(self) -> dict[str, Any]:
        """Return who asked for the end, or nothing."""
        with contextlib.suppress(OSError, ValueError):
            return self._read_json("cancel.json")
        return {}

    def remove(self) -> None:
        """Delete the run in one step as others see it; its logs outside the folder stay."""
        hidden = self.path.with_name(f"{_GONE}{self.app_id}")
        try:
            self.path.rename(hidden)
        except OSError as error:
            raise StateNotWritable(self.path.parent, error) from error
        shutil.rmtree(hidden, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._refuge().unlink(missing_ok=True)

    def _refuge(self) -> Path:
        return settings.runtime_dir() / f"{self.app_id}.json"

    def _read_json(self, name: str) -> dict[str, Any]:
        with open_file(self.path / name) as file:
            data: dict[str, Any] = json.loads(file.read(_LONGEST))
        return data

    def _write_json(self, name: str, data: Mapping[str, Any]) -> None:
        _replace(self.path / name, json.dumps(data, indent=1).encode())


class StateNotWritable(Failure):
    """The state folder takes no files."""

    code = "state_not_writable"

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"cannot write to {path}: {cause.strerror or cause}; "
            "free some disk space, fix its permissions, or set LOOM_HOME to another folder"
        )


def all_folders() -> Iterator[RunFolder]:
    """Yield the folder of every run, in no order."""
    with contextlib.suppress(FileNotFoundError), os.scandir(settings.runs_dir()) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield RunFolder(Path(entry.path))


def now() -> str:
    """Return this instant as records write it: aware UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _agreed(attempt: int) -> str:
    return f"{_AGREED}-{attempt}" if attempt else _AGREED


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb", opener=_private) as file:
            file.write(data)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)  # no FIFO holds it up
