"""Runs that are over, written into the state folder of a test without starting anything."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from torchloom import settings
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.specs.api import AppDef, AppState, Role
from torchloom.specs.serialize import app_to_dict


def ended_run(
    job: str,
    days: float = 0.0,
    state: AppState = AppState.SUCCEEDED,
    logs: Path | None = None,
    parent: str = "",
    launcher: ProcessIdentity | None = None,
) -> Path:
    """Write a run that ended so many days ago, with a log and a dump; return its folder."""
    then = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds")
    folder = settings.runs_dir() / job
    log_dir = logs or folder / "logs"
    record = RunRecord(
        id=job,
        name=job.partition("-")[0],
        session="torchx",
        owner="ada",
        host="host",
        log_dir=str(log_dir),
        created_at=then,
        state=state,
        started_at=then,
        ended_at=then,
        parent=parent,
        launcher=launcher,
    )
    role = RoleRequest("trainer", (ReplicaRequest(("true",), {}),), 1, False)
    app = app_to_dict(AppDef(record.name, [Role("trainer", "", entrypoint="true")]))
    request = LaunchRequest(job, record.name, "torchx", "/", str(log_dir), (role,))
    RunFolder.create(request, app, record).publish()
    for part in (log_dir / "trainer" / "0", folder / "dumps"):
        part.mkdir(parents=True)
        (part / "out").write_text("x" * 10_000)
    return folder
