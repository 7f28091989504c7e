"""Build the manual into .build/site, offline and strict: a dead link or a page in no section fails.

`mkdocs serve` shows it while one writes; this module is its hook, which makes the navigation of
the tree. It runs with the Python that has mkdocs-material: that of `make venv`, or of a build.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "mkdocs-material"
WITHOUT = "LOOM_NO_DOCS"  # 1: a wheel without the manual is wanted
STAMP = ".sources"  # lies in the site, so that an sdist's is known to be current, too
SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {  # folder: heading, what comes first in it
    "tutorials": (
        "Tutorials",
        (
            *("first-run", "survive-a-kill", "steer-a-run"),
            *("hugging-face", "lightning", "accelerate", "slurm", "team-plane"),
        ),
    ),
    "guides": (
        "Guides",
        (
            *("run-on-two-gpus", "run-on-slurm", "see-loss-curves", "log-a-metric"),
            *("change-lr-and-undo", "keep-best-checkpoints", "resume-with-fewer-ranks"),
            *("why-did-it-restart", "which-rank-is-on-which-gpu", "add-a-teammate"),
            *("use-postgres-and-s3", "upgrade-the-plane"),
        ),
    ),
    "reference": (
        "Reference",
        (
            *("cli", "job-spec", "config-files", "environment"),
            *("python", "rest", "websocket", "json", "programs", "support"),
        ),
    ),
    "concepts": (
        "Concepts",
        (
            *("architecture", "jobs-runs-attempts", "ranks-and-groups", "recovery"),
            *("bit-exactness", "live-control", "checkpoints", "plane", "promises", "glossary"),
        ),
    ),
    "internals": ("Internals", ("map",)),
}
_REFUSED = re.compile(r"^( *`{3,}console) refused *$", re.MULTILINE)
_LEFT_OUT = ("evidence", "json")  # as in mkdocs.yml
_FINE = ("INFO", "DEBUG")  # what mkdocs says of its work
_EXCLUDED = "excluded from the built site"  # a link that mkdocs lets pass, and which would be dead
TOP = {"security.md": "concepts"}  # pages beside the folders, and the section they appear in


class NoManual(Exception):
    """It cannot be built here; the reason is for people."""


def on_config(config: Any) -> Any:
    """Give mkdocs the navigation, whoever started it."""
    config["nav"] = navigation(Path(config["docs_dir"]))
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take off a word for the tests: with it the theme would not show the block as one."""
    return _REFUSED.sub(r"\1", markdown)


def navigation(docs: Path) -> list[Any]:
    """Return the sections with their pages; titles are the pages' own."""
    nav: list[Any] = [{"Home": "index.md"}] if (docs / "index.md").exists() else []
    for folder, (heading, first) in SECTIONS.items():
        pages = _pages(docs, docs / folder, first)
        tops = [docs / name for name, where in TOP.items() if where == folder]
        pages += [_titled(docs, path) for path in tops if path.exists()]
        if pages:
            nav.append({heading: pages})
    return nav


def _pages(docs: Path, folder: Path, first: tuple[str, ...]) -> list[Any]:
    """Return the pages of a folder and of those in it: the index, what comes first, the rest."""
    order = {"index": -1, **{name: at for at, name in enumerate(first)}}
    found = [path for path in folder.glob("*") if path.suffix == ".md" or path.is_dir()]
    found.sort(key=lambda path: (order.get(path.stem, len(order)), path.name))
    pages: list[Any] = []
    for path in found:
        if path.suffix == ".md":
            pages.append(_titled(docs, path))
        elif inner := _pages(docs, path, ()):
            pages.append({_heading(path / "index.md"): inner})
    return pages


def _titled(docs: Path, page: Path) -> dict[str, str]:
    """Return a page under its own title: a comment before the heading hides that from mkdocs."""
    return {_heading(page): page.relative_to(docs).as_posix()}


def _heading(page: Path) -> str:
    """Return the title of a page, without marks of code."""
    lines = page.read_text().splitlines() if page.exists() else []
    return next(
        (line[2:].replace("`", "") for line in lines if line.startswith("# ")), page.parent.name
    )


def built(root: Path = ROOT) -> Path:
    """Return the folder with the manual of the present sources, built once."""
    site = root / ".build" / "site"
    if not (root / "mkdocs.yml").exists():
        raise NoManual("there are no sources of it here")
    if is_current(root):
        return site
    with _alone(root):
        if not is_current(root):  # another process may have built it meanwhile
            _build(root, site)
    return site


def is_current(root: Path = ROOT) -> bool:
    """Say whether what is built is of the present sources."""
    try:
        return (root / ".build" / "site" / STAMP).read_text().strip() == fingerprint(root)
    except OSError:
        return False


def fingerprint(root: Path = ROOT) -> str:
    """Return what the site depends on: names and content of the sources."""
    folder = root / "docs"
    shown = (each for each in folder.iterdir() if each.name not in _LEFT_OUT)
    found = [path for each in shown for path in (each, *each.rglob("*")) if path.is_file()]
    digest = hashlib.sha256()
    for path in [root / "mkdocs.yml", root / "make" / "docs.py", *sorted(found)]:
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def wanted() -> list[str]:
    """Return the packages that a build of the manual needs and this Python lacks."""
    is_here = not (ROOT / "mkdocs.yml").exists() or is_current()
    return [] if is_unwanted() or is_here or _has_mkdocs() else [f"{PACKAGE}>=9.5"]


def is_unwanted() -> bool:
    """Say whether the user wants torchloom without its manual."""
    return os.environ.get(WITHOUT) == "1"


def _has_mkdocs() -> bool:
    return importlib.util.find_spec("material") is not None


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Have one process build at a time."""
    lock = root / ".build" / "docs.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(root: Path, site: Path) -> None:
    """Build beside the last one and put it in its place, stamped as the last thing."""
    if not _has_mkdocs():
        raise NoManual(f"it takes {PACKAGE}: `make docs` has it, or `pip install {PACKAGE}`")
    made, mark = root / ".build" / "site.new", fingerprint(root)
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", made]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of the theme
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, check=False)
    printed = f"{done.stdout}{done.stderr}"
    wrong = [line for line in printed.splitlines() if not line.startswith(_FINE)]
    wrong += [line for line in printed.splitlines() if _EXCLUDED in line]
    if done.returncode or _EXCLUDED in printed:
        raise NoManual("\n".join(["the manual cannot be built:", *wrong]))
    shutil.rmtree(site, ignore_errors=True)
    made.rename(site)
    (site / STAMP).write_text(f"{mark}\n")


def main() -> int:
    """Build what is to be built; return the exit code."""
    try:
        print(built() / "index.html")
    except NoManual as error:
        print(f"make docs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
