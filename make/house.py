"""Measure how the package is folded: `make house`, or `house.py TREE` for any other checkout.

Only source is read, with the standard library alone. Imports count wherever they stand: in
functions, relative, of a module from its package, through the `__init__` that hands a name on; a
string that names a module counts as an import of it.
"""

import argparse
import ast
import json
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES = ("/cli/cmd_", "/cli/commands/cmd_", "/server/routes/", "_scheduler.py", "/migrations/")
NO_GERUNDS = {"string", "thing", "ring", "king", "spring", "ping", "lightning"}
_NAME = re.compile(r"torchloom(?:\.[a-z_][a-z0-9_]*)+")


class House:
    """The modules of a package, and what they say of each other."""

    def __init__(self, package: Path, parse: Callable[[Path], ast.Module]) -> None:
        self.package = package
        self.trees = {
            path: parse(path)
            for path in sorted(package.rglob("*.py"))
            if "__pycache__" not in path.parts
        }
        self.nodes = {path: list(ast.walk(tree)) for path, tree in self.trees.items()}
        self.known = {self.name_of(path): path for path in self.trees}
        self.modules = [path for path in self.trees if _is_module(path)]
        self.lines = {path: path.read_text().count("\n") for path in self.trees}

    def name_of(self, path: Path) -> str:
        """Return what a file is imported as."""
        parts = path.relative_to(self.package.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def short(self, path: Path) -> str:
        return path.relative_to(self.package).as_posix()

    def consumers(self) -> tuple[dict[Path, set[Path]], dict[Path, set[Path]]]:
        """Return who uses each module at all, and who when it is imported itself."""
        every: dict[Path, set[Path]] = defaultdict(set)
        at_once: dict[Path, set[Path]] = defaultdict(set)
        for path in self.trees:
            if path.name in ("__init__.py", "__main__.py"):
                continue
            for used, is_lazy in self._used(path):
                if used != path:
                    every[used].add(path)
                    if not is_lazy:
                        at_once[used].add(path)
        return every, at_once

    def _used(self, path: Path) -> Iterator[tuple[Path, bool]]:
        lazy, words = self._lazy(path), self._docstrings(path)
        for node in self.nodes[path]:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name in self._names(path, node):
                    if (found := self._resolved(name)) is not None:
                        yield found, id(node) in lazy
            elif isinstance(node, ast.Constant) and id(node) not in words:
                yield from ((found, True) for found in self._in_text(node.value))

    def _lazy(self, path: Path) -> set[int]:
        """Return the imports in functions: they happen when those are called."""
        return {
            id(inner)
            for node in self.nodes[path]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in _statements(node)
            if isinstance(inner, ast.Import | ast.ImportFrom)
        }

    def _docstrings(self, path: Path) -> set[int]:
        """Return the texts that are for people: a statement that is a string."""
        return {
            id(node.value)
            for node in self.nodes[path]
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }

    def _names(self, path: Path, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                own = self.name_of(path).split(".")
                is_package = path.name == "__init__.py"
                kept = own[: len(own) - node.level + is_package]
                base = ".".join([*kept, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)

    def _resolved(self, name: str, depth: int = 5) -> Path | None:
        """Return the module that has a name, also when its package hands the name on."""
        if name in self.known:
            return self.known[name]
        parent, _, last = name.rpartition(".")
        home = self.known.get(parent)
        if home is None or home.name != "__init__.py" or not depth:
            return home
        for node in self.nodes[home]:
            if isinstance(node, ast.ImportFrom):
                for given, alias in zip(self._names(home, node), node.names, strict=True):
                    if (alias.asname or alias.name) == last:
                        return self._resolved(given, depth - 1)
        return home

    def _in_text(self, text: object) -> Iterator[Path]:
        for name in _NAME.findall(text) if isinstance(text, str) else ():
            if name in self.known:
                yield self.known[name]

    def class_names(self) -> dict[str, list[str]]:
        """Return the names that several classes have, private and inner ones too, and where."""
        found: dict[str, list[str]] = defaultdict(list)
        for path, nodes in self.nodes.items():
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(self.short(path))
        return {name: places for name, places in sorted(found.items()) if len(places) > 1}

    def slots(self) -> tuple[list[str], list[str]]:
        """Return the attributes that hold what to call and are set from outside, and where."""
        declared = {
            (self.short(path), owner.name, attribute)
            for path, nodes in self.nodes.items()
            for owner in nodes
            if isinstance(owner, ast.ClassDef)
            for attribute in _callables(owner)
        }
        names = {attribute for _, _, attribute in declared}
        sites, assigned = [], set()
        for path, nodes in self.nodes.items():
            for node, target, value in _assignments(nodes):
                if _is_outside(target) and _is_handler(target, value, names):
                    sites.append(f"{self.short(path)}:{node.lineno} {ast.unparse(target)}")
                    assigned.add(target.attr)
        kept = [f"{place}: {owner}.{name}" for place, owner, name in declared if name in assigned]
        return sorted(kept), sorted(sites)

    def gerunds(self) -> tuple[list[str], list[str]]:
        """Return the modules and the folders that are named for doing instead of for a thing."""
        modules = [self.short(path) for path in self.modules if _is_gerund(path.stem)]
        folders = {path.parent for path in self.trees if _is_gerund(path.parent.name)}
        return modules, sorted(self.short(folder) for folder in folders)


def read(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def report(package: Path, parse: Callable[[Path], ast.Module] = read) -> dict[str, Any]:
    """Return all figures of a package, and the lists behind those that are counted."""
    house = House(package, parse)
    sizes = sorted(house.lines[path] for path in house.modules)
    every, at_once = house.consumers()
    alone = [path for path in house.modules if len(every[path]) == 1]
    slots, sites = house.slots()
    gerunds, gerund_folders = house.gerunds()
    classes = house.class_names()
    folders = Counter(
        house.short(path.parent) for path in house.modules if not _is_registered(path)
    )
    return {
        "modules": len(sizes),
        "median": statistics.median(sizes),
        "p90": sizes[int(len(sizes) * 0.9)],
        "largest_folder": list(folders.most_common(1)[0]),
        "folders_over_20": {name: count for name, count in folders.most_common() if count > 20},
        "one_consumer": len(alone),
        "one_consumer_at_import": sum(len(at_once[path]) == 1 for path in alone),
        "no_consumer": sum(not every[path] for path in house.modules),
        "class_names_twice": len(classes),
        "gerund_modules": len(gerunds),
        "gerund_folders": len(gerund_folders),
        "callback_slots": len(slots),
        "callback_assignments": len(sites),
        "lines": sum(house.lines.values()),
        "lists": {
            "small_modules": {
                house.short(path): house.lines[path]
                for path in house.modules
                if house.lines[path] < 100 and not _is_registered(path)
            },
            "one_consumer": {house.short(path): house.short(min(every[path])) for path in alone},
            "no_consumer": [house.short(path) for path in house.modules if not every[path]],
            "class_names_twice": classes,
            "gerund_modules": gerunds,
            "gerund_folders": gerund_folders,
            "callback_slots": slots,
            "callback_assignments": sites,
        },
    }


def _is_module(path: Path) -> bool:
    return path.name not in ("__init__.py", "__main__.py") and "migrations" not in path.parts


def _is_registered(path: Path) -> bool:
    return any(part in path.as_posix() for part in REGISTRIES)


def _is_gerund(stem: str) -> bool:
    words = set(stem.split("_")) - NO_GERUNDS
    return any(re.fullmatch(r"[a-z]*[a-z]{2}ing", word) for word in words)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node; there is none in an expression."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.expr):
            yield inner
            yield from _statements(inner)


def _assignments(
    nodes: Iterable[ast.AST],
) -> Iterator[tuple[ast.stmt, ast.Attribute, ast.expr | None]]:
    """Yield what is assigned to attributes, each of several targets by itself."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            yield node, node.target, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((node, *pair) for pair in _pairs(target, node.value))


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Attribute, ast.expr | None]]:
    if isinstance(target, ast.Attribute):
        yield target, value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else [None] * len(target.elts)
        for each, given in zip(target.elts, values, strict=False):
            if isinstance(each, ast.Attribute):
                yield each, given


def _callables(owner: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class keeps for calling and does not get in its constructor."""
    for node, target, value in _assignments(_statements(owner)):
        is_own = isinstance(target.value, ast.Name) and target.value.id == "self"
        stated = isinstance(node, ast.AnnAssign) and "Callable" in ast.unparse(node.annotation)
        if is_own and (stated or isinstance(value, ast.Lambda)):
            yield target.attr
    for line in owner.body:
        is_stated = isinstance(line, ast.AnnAssign) and "Callable" in ast.unparse(line.annotation)
        if is_stated and isinstance(line.target, ast.Name):
            yield line.target.id


def _is_outside(target: ast.Attribute) -> bool:
    return not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"))


def _is_handler(target: ast.Attribute, value: ast.expr | None, known: set[str]) -> bool:
    is_named = target.attr in known or target.attr.startswith("on_")
    is_called = value is None or isinstance(value, ast.Attribute | ast.Name)
    return isinstance(value, ast.Lambda) or (is_named and is_called)


def main(words: list[str]) -> int:
    """Measure, keep what was asked to be kept, print."""
    parser = argparse.ArgumentParser(prog="make house", description=__doc__)
    parser.add_argument("tree", type=Path, nargs="?", default=ROOT, help="a checkout; else this")
    parser.add_argument("--out", type=Path, help="a file for figures and lists, as JSON")
    given = parser.parse_args(words)
    found = report(given.tree / "src" / "torchloom")
    if given.out:
        git = ["git", "-C", str(given.tree), "rev-parse", "HEAD"]
        said = subprocess.run(git, capture_output=True, text=True, check=False)
        kept = {"commit": said.stdout.strip(), **found}
        given.out.write_text(json.dumps(kept, indent=1) + "\n")
    for name, value in found.items():
        if name != "lists":
            print(f"{name:24} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
