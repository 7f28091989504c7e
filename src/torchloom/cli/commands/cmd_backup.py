"""`loom backup`: copy both databases and the plane's keys into one file."""

from dataclasses import asdict
from pathlib import Path

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo, echo_json, say


@click.command(
    "backup", cls=LoomCommand, epilog=examples("loom backup", "loom backup /mnt/backups")
)
@click.argument("target", required=False, type=click.Path(path_type=Path), metavar="[FILE|DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(target: Path | None, as_json: bool) -> None:
    """Copy both databases and the plane's keys into one file, and verify the copy.

    The default place is $LOOM_HOME/backups. The plane may be running; it keeps storing jobs and
    metrics. The file contains secrets: anyone who can read it can act as this plane.
    """
    import os

    from torchloom.weaver.store.backup import back_up
    from torchloom.weaver.store.daily_backup import name_of
    from torchloom.weaver.store.place import place_of

    home = settings.loom_home()
    path = (target or home / "backups").absolute()
    if target is None or path.is_dir():
        path = path / name_of("backup")
    os.nice(5)  # training and serving processes have priority
    manifest = back_up(place_of(home, settings.environment()), home, path)
    size = path.stat().st_size
    if as_json:
        echo_json({"file": str(path), "size": size, **asdict(manifest)})
        return
    echo(str(path))
    schemas = ", ".join(manifest.schemas.values())
    say(
        f"{size / 2**20:.1f} MiB, {schemas}; verified. It contains keys and tokens: keep it private"
    )
