"""`loom docs`: open the manual that was installed with the package."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from torchloom import settings
from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo, echo_json
from torchloom.errors import Ambiguous, Failure, NotFound

_SUFFIX = ".html"
_NO_PAGES = ("404",)


@click.command(
    "docs",
    cls=LoomCommand,
    epilog=examples("loom docs", "loom docs run-on-slurm --print"),
)
@click.argument("page", required=False, default="")
@click.option("--print", "prints", is_flag=True, help="Print the address instead.")
@click.option("--json", "as_json", is_flag=True, help="Print an object instead.")
def command(page: str, prints: bool, as_json: bool) -> int:
    """Open the manual, or a PAGE of it, in a browser.

    PAGE is a name such as `run-on-slurm` or `guides/run-on-slurm`, or a verb. Over ssh or without
    a display, prints the address instead. A running plane serves the same pages at /manual/.
    """
    import webbrowser

    from torchloom.cli.commands.cmd_open import has_browser

    folder = _folder()
    name = find(page, names_in(folder)) if page else "index"
    path = folder / f"{name}{_SUFFIX}"
    if as_json:
        echo_json({"page": name, "path": str(path), "url": path.as_uri()})
        return 0
    echo(path.as_uri())
    if not prints and has_browser(settings.environment(), sys.platform):
        webbrowser.open(path.as_uri())
    return 0


def _folder() -> Path:
    from torchloom.server.bundle import HOW_MANUAL, manual_of

    index = manual_of(settings.environment()).index()
    if index is None:
        raise Failure(HOW_MANUAL)
    return index.parent


def names_in(folder: Path) -> list[str]:
    """Return the names of all pages: their paths without an ending."""
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob(f"*{_SUFFIX}"))
    return sorted(path.as_posix() for path in paths if path.as_posix() not in _NO_PAGES)


def find(page: str, names: Sequence[str]) -> str:
    """Return the page that is meant: by its path, else by the end of it; verbs come first."""
    wanted = page.removesuffix(_SUFFIX).removesuffix(".md").strip("/")
    for whole in (wanted, f"{wanted}/index", f"reference/cli/{wanted}"):
        if whole in names:
            return whole
    found = [name for name in names if f"/{name}".endswith(f"/{wanted}")]
    if len(found) > 1:
        raise Ambiguous("page", page, found)
    if not found:
        short = [name.rpartition("/")[2] for name in names]
        raise NotFound("page", page, [*names, *short], "`loom docs` opens the first page")
    return found[0]
