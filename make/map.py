"""Draw docs/internals/map.md from the tree and the traced call paths; `--check` only compares.

Two parts of the page are generated: every module with the first sentence of its docstring, and the
files that four calls pass, as `make paths OUT=docs/evidence/paths.json` traced them.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "torchloom"
PAGE = ROOT / "docs" / "internals" / "map.md"
PATHS = ROOT / "docs" / "evidence" / "paths.json"
BEFORE = ROOT / "docs" / "evidence" / "paths-before.json"
TREE = ("<!-- tree: `make map` -->\n", "<!-- end of tree -->")
CALLS = ("<!-- calls: `make map` -->\n", "<!-- end of calls -->")
TITLES = {
    "run": "`loom run` until the first line of the user's program",
    "set": "`loom set` until its answer",
    "metric": "a number that a rank logs until the HTTP API returns it",
    "kill": "`kill -9` of a rank, policy live, until all ranks train again",
}
ORDER = ("command", "plane", "launch", "keeper", "zygote", "rank", "node agent", "weaver", "server")


def main(words: list[str]) -> int:
    """Bring the page up to date, or return 1 if it is not."""
    text = PAGE.read_text()
    wanted = _replaced(_replaced(text, TREE, tree()), CALLS, calls())
    if "--check" in words:
        return int(text != wanted)
    PAGE.write_text(wanted)
    return 0


def tree() -> str:
    """Return a table for each room: its modules, and what each is for."""
    rooms = sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    return "".join(_room(room) for room in rooms)


def calls() -> str:
    """Return the files of each call path, by process, in the order of their first calls."""
    traced = json.loads(PATHS.read_text())
    before = json.loads(BEFORE.read_text())["paths"]
    return "".join(
        _path(title, traced["paths"][name], before[name]) for name, title in TITLES.items()
    )


def _room(room: Path) -> str:
    lines = [
        f"### `{room.name}/`\n\n{_sentence(room / '__init__.py')}\n\n| module | |\n|---|---|\n"
    ]
    for path in _modules(room):
        lines.append(f"| `{path.relative_to(room).as_posix()}` | {_sentence(path)} |\n")
    return "".join([*lines, "\n"])


def _modules(room: Path) -> Iterator[Path]:
    """Yield the modules of a room, those of its own first, then folder by folder."""
    for path in sorted(room.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        if path.name not in ("__init__.py", "__main__.py") and "migrations" not in path.parts:
            yield path


def _sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, fit for a cell of a table."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = text.split("\n\n")[0].replace("\n", " ")
    return first.partition(". ")[0].rstrip(".").replace("|", "\\|")


def _path(title: str, found: dict[str, Any], before: dict[str, Any]) -> str:
    counts = f"{found['median']:.0f} files ({before['median']:.0f} before the package was folded)"
    lines = [f"### {title}\n\n{counts}, background work of that time included.\n\n"]
    processes = sorted(found["by_process"], key=lambda name: (_place(name), name))
    for process in processes:
        files = ", ".join(f"`{file.removesuffix('.py')}`" for file in found["by_process"][process])
        lines.append(f"- **{process}**: {files}\n")
    return "".join([*lines, "\n"])


def _place(process: str) -> int:
    return ORDER.index(process) if process in ORDER else len(ORDER)


def _replaced(text: str, marks: tuple[str, str], part: str) -> str:
    begin, end = marks
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{PAGE.name} has no place for {begin.strip()} ... {end}")
    return f"{before}{begin}\n{part}{end}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
