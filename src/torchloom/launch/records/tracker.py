"""The tracker of our own runs: their records, and what programs have added by TorchX's API.

Additions lie below `$LOOM_HOME/trackers`, in the layout of TorchX's own file tracker. Records are
the truth for what they have: a program cannot change a run's state by a fact of that name.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from torchloom import settings
from torchloom.checkpoint.layout import step_of
from torchloom.launch.records import catalog
from torchloom.launch.records.record import RunRecord
from torchloom.specs.api import MalformedAppHandleException, make_app_handle, parse_app_handle
from torchloom.torchx.fsspec_tracker import FsspecTracker, LocalFiles
from torchloom.torchx.tracker import Lineage, TrackerArtifact, TrackerBase, TrackerSource
from torchloom.unix import make_private

_FACTS = ("name", "owner", "host", "reason", "restarts", "created_at", "started_at", "ended_at")
_SCHEDULER = "local"  # of all runs that have a record here


class RunTracker(TrackerBase):
    """Answers from the records of this state folder; a run is named by its handle or its id."""

    def __init__(self) -> None:
        folder = settings.loom_home() / "trackers"
        make_private(folder)
        self._added = FsspecTracker(LocalFiles(), str(folder))

    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        self._added.add_artifact(_handle(run_id), name, path, metadata)

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return what was added, and the committed checkpoints of the run on this machine."""
        record = _record(run_id)
        saved = {} if record is None else {each.name: each for each in _checkpoints(record)}
        return saved | dict(self._added.artifacts(_handle(run_id)))

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        self._added.add_metadata(_handle(run_id), **kwargs)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return what was added, and the facts of the record: state, step, times."""
        record = _record(run_id)
        added = dict(self._added.metadata(_handle(run_id)))
        if record is None:
            return added
        facts = {name: getattr(record, name) for name in _FACTS}
        known = {"state": record.state.name, "step": record.step, **facts}
        return added | {name: value for name, value in known.items() if value not in (None, "")}

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        self._added.add_source(_handle(run_id), source_id, artifact_name)

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        return self._added.sources(_handle(run_id), artifact_name)

    def lineage(self, run_id: str) -> Lineage:
        """Return what the run was made from, and the runs that say they were made from it."""
        below = self._added.run_ids(parent_run_id=_handle(run_id))
        return Lineage(list(self.sources(run_id)), list(below))

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the handles of all runs, newest first; those of a parent, by what was added."""
        if kwargs.get("parent_run_id"):
            return self._added.run_ids(parent_run_id=_handle(kwargs["parent_run_id"]))
        known = [make_app_handle(_SCHEDULER, each.session, each.id) for each in catalog.records()]
        return list(dict.fromkeys([*known, *self._added.run_ids()]))


def create(config: str | None = None) -> TrackerBase:
    """Return the tracker; it has no config."""
    return RunTracker()


def _handle(run_id: str) -> str:
    """Return the handle of a run that is named by its id, or by a handle of another session."""
    record = _record(run_id)
    if record is None:
        return run_id
    return make_app_handle(_SCHEDULER, record.session, record.id)


def _record(run_id: str) -> RunRecord | None:
    try:
        return catalog.record(parse_app_handle(run_id).app_id)
    except MalformedAppHandleException:
        return catalog.record(run_id)


def _checkpoints(record: RunRecord) -> list[TrackerArtifact]:
    root = Path(record.checkpoints)
    if not record.checkpoints or not root.is_dir():
        return []
    found = [
        (step, folder)
        for folder in root.rglob("ckpt_step_*")
        if (step := step_of(folder.name)) is not None
    ]
    return [
        TrackerArtifact(folder.name, str(folder), {"step": step}) for step, folder in sorted(found)
    ]
