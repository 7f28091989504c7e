"""The folder of a job: made before it is submitted, read for its state afterwards."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure, LoomError, UserError
from torchloom.launch.records.parcel import END, Parcel, write_private
from torchloom.schedulers.batch.index import IndexEntry
from torchloom.schedulers.batch.plan import place_of
from torchloom.schedulers.batch.script import SCRIPT, BatchRequest
from torchloom.specs.api import AppDef, app_from_dict


def write(request: BatchRequest) -> None:
    """Make a job's folder with all that its script reads; a folder that is there is refused."""
    from torchloom.workspace import dir_workspace, sources

    try:
        request.folder.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise UserError(f"job_dir: {request.folder} exists; name a new folder") from None
    except OSError as error:
        raise Failure(f"cannot make {request.folder}: {error.strerror}; name a job_dir") from error
    try:
        for role, projects in request.workspaces.items():
            dir_workspace.copy(projects, place_of(request.folder, role))
        request.parcel.write(request.folder)
        cwd, is_copied = request.parcel.cwd, bool(request.workspaces)
        env = settings.environment()
        sources.keep(request.folder, cwd, list(_sources(request)), is_copied, env)
        write_private(request.folder / SCRIPT, request.script, 0o700)
    except BaseException:
        shutil.rmtree(request.folder, ignore_errors=True)
        raise


def _sources(request: BatchRequest) -> Iterator[Path]:
    """Yield where a job's sources may be: what is copied, beside its scripts, where it begins."""
    from torchloom.specs.workspace import local_path

    for projects in request.workspaces.values():
        for path in map(local_path, projects):
            yield path if path.is_dir() else path.parent
    for role in app_from_dict(request.parcel.app).roles:
        scripts = [word for word in (role.entrypoint, *role.args) if word.endswith(".py")]
        yield from (Path(request.parcel.cwd, script).parent for script in scripts)
    yield Path(request.parcel.cwd)


def entry_of(parcel: Parcel, folder: Path, job: str) -> IndexEntry:
    """Return what is noted of a job that an engine has just taken."""
    app = app_from_dict(parcel.app)
    return IndexEntry(
        job=job,
        engine=parcel.engine,
        run_id=parcel.run_id,
        name=app.name,
        session=parcel.session,
        folder=str(folder),
        replicas={role.name: role.num_replicas for role in app.roles},
        **noted_now(),
    )


def noted_now() -> dict[str, Any]:
    """Return when an entry is made, for people and for their order."""
    now = datetime.now(UTC)
    made = now.isoformat(timespec="milliseconds")
    return {"created_at": made, "submitted_at": now.timestamp()}


def end_of(entry: IndexEntry | None) -> dict[str, str]:
    """Return how the job ended by its own record; nothing while it has not."""
    with contextlib.suppress(OSError, ValueError):
        if entry is not None:
            found: dict[str, str] = json.loads((Path(entry.folder) / END).read_bytes())
            return found
    return {}


def app_of(entry: IndexEntry | None) -> AppDef | None:
    """Return the app that was submitted; nothing when its folder is gone."""
    with contextlib.suppress(LoomError):
        if entry is not None:
            return app_from_dict(Parcel.read(Path(entry.folder)).app)
    return None
