"""`loom restore`: replace this plane's databases and keys by a backup; or salvage them."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo, echo_json, say
from torchloom.errors import UserError


class PlaneRuns(UserError):
    """Databases are not replaced under a running plane."""

    code = "plane_runs"

    def __init__(self) -> None:
        super().__init__(
            "a plane is running on these databases; stop it with `loom down`, jobs keep running"
        )


@click.command(
    "restore",
    cls=LoomCommand,
    epilog=examples(
        "loom restore /mnt/backups/plane-20260131-120000.tar", "loom restore --salvage"
    ),
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--salvage", is_flag=True, help="Rebuild damaged databases from readable rows.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(file: Path | None, salvage: bool, as_json: bool) -> None:
    """Restore a backup; the replaced files are kept.

    The plane must be down. The next plane finds running jobs again. --salvage needs no file: it
    copies the readable rows of a damaged database into a new one.
    """
    if salvage == (file is not None):
        raise UserError("name the backup to restore, or give --salvage without a file")
    with _alone(settings.loom_home() / "plane"):
        if file is None:
            _salvage(as_json)
        else:
            _restore(file.absolute(), as_json)


def _restore(file: Path, as_json: bool) -> None:
    from torchloom.weaver.store.place import place_of
    from torchloom.weaver.store.restoration import restore

    home = settings.loom_home()
    done = restore(file, place_of(home, settings.environment()), home)
    manifest = done.manifest
    if as_json:
        replaced = str(done.replaced) if done.replaced else None
        echo_json({"file": str(file), "home": str(home), "replaced": replaced, **asdict(manifest)})
        return
    by = f"torchloom {manifest.torchloom}"
    echo(f"restored the backup of {manifest.host} made at {manifest.made_at} by {by}")
    if done.replaced:
        echo(f"the replaced files are in {done.replaced}")
    say("`loom up` starts the plane")


def _salvage(as_json: bool) -> None:
    from torchloom.weaver.store.place import place_of
    from torchloom.weaver.store.restoration import salvage

    home = settings.loom_home()
    found = salvage(place_of(home, settings.environment()), home)
    if as_json:
        echo_json([{**asdict(one), "replaced": str(one.replaced)} for one in found])
        return
    for one in found:
        echo(f"{one.name} ({one.why}): {sum(one.rows.values())} rows recovered, {one.by}")
        echo(f"the damaged file is in {one.replaced}")
    if not found:
        echo("no database is damaged")


@contextlib.contextmanager
def _alone(plane: Path) -> Iterator[None]:
    """Keep planes of this state folder from starting; refuse if one is running on any host."""
    from torchloom.client.plane import find
    from torchloom.plane import lock
    from torchloom.unix import make_private

    make_private(plane)
    with contextlib.ExitStack() as held:
        for path in {plane / f"{os.uname().nodename}.lock", *plane.glob("*.lock")}:
            with contextlib.suppress(OSError):  # a file system without locks: `find` decides
                if not held.enter_context(lock.hold(path)):
                    raise PlaneRuns
        if find() is not None:
            raise PlaneRuns
        yield
