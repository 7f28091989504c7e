"""A Python file that holds components, loaded as a real module without leaving a trace."""

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torchloom.specs.builders import ComponentFailed
from torchloom.torchx.names import torchx_names


def source_of(fn: Callable[..., object]) -> str:
    """Return imports, constants and helpers that the function uses, then the function itself."""
    text = Path(inspect.getfile(fn)).read_text()
    body = ast.parse(text).body
    definitions = {name: node for node in body for name in _defined_by(node)}
    needed = _reachable(fn.__name__, definitions)
    kept = [node for node in body if any(name in needed for name in _defined_by(node))]
    parts = [_text_of(node, text, needed) for node in kept]
    return _joined(parts) + "\n"


def _defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    return []


def _reachable(start: str, definitions: dict[str, ast.stmt]) -> set[str]:
    """Return every defined name that the start uses, directly or through another."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in found or name not in definitions:
            continue
        found.add(name)
        nodes = ast.walk(definitions[name])
        waiting += [node.id for node in nodes if isinstance(node, ast.Name)]
    return found


def _text_of(node: ast.stmt, text: str, needed: set[str]) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom):
        used = [a for a in node.names if (a.asname or a.name).partition(".")[0] in needed]
        node.names = used
        return ast.unparse(node)
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _joined(parts: list[str]) -> str:
    """Return the parts with imports close together and two blank lines around definitions."""
    lines: list[str] = []
    for part in parts:
        is_import = part.startswith(("import ", "from "))
        lines += [part] if is_import else ["", "", part]
    return "\n".join(lines).strip("\n")


class ComponentFile:
    """The module of one file, together with the modules it imports from its own folder.

    They are in `sys.modules`, and the folder is on `sys.path`, only while the file's code runs: two
    files may each have a neighbour of the same name.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.name, self.root = _identity(Path(self.path))
        self._own: dict[str, ModuleType] = {}

    def load(self) -> ModuleType:
        """Run the file and return its module; what it raises is reported with its place."""
        with self.at_home():
            try:
                return self._run()
            except (Exception, SystemExit) as error:  # a user's file may raise anything
                raise ComponentFailed(f"file {self.path}", error, self.path) from error

    def bound(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function so that its calls, too, happen where its imports work."""

        @wraps(fn, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.at_home():
                return fn(*args, **kwargs)

        return call

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Make the file's own modules, its folder and TorchX's names importable for a while."""
        with torchx_names():
            shared = _is_importable_from(self.root)
            before = dict(sys.modules)
            sys.path.insert(0, self.root)
            sys.modules.update(self._own)
            try:
                yield
            finally:
                sys.path.remove(self.root)
                self._take_own(before, shared)

    def _run(self) -> ModuleType:
        from importlib import import_module
        from importlib.util import module_from_spec

        parent = self.name.rpartition(".")[0]
        if parent:
            import_module(parent)
        loader = _FreshLoader(self.name, self.path)
        spec = ModuleSpec(self.name, loader, origin=self.path)
        spec.has_location = True
        module = module_from_spec(spec)
        self._own[self.name] = sys.modules[self.name] = module
        loader.exec_module(module)
        return module

    def _take_own(self, before: dict[str, ModuleType], shared: bool) -> None:
        """Move new modules of the folder out of `sys.modules`, unless all could import them."""
        for name, module in list(sys.modules.items()):
            if before.get(name) is module:
                continue
            if name in self._own or (not shared and self._is_neighbour(module)):
                self._own[name] = sys.modules.pop(name)
                if name in before:
                    sys.modules[name] = before[name]

    def _is_neighbour(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None) or ""
        return file.startswith(self.root + os.sep) and "-packages" + os.sep not in file


class _FreshLoader(SourceFileLoader):
    """Compiles the source each time: an edit within the clock's tick must not run old bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _identity(path: Path) -> tuple[str, str]:
    """Return a file's module name and the folder to import from: packages have dotted names."""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(parts)
    taken = sys.modules.get(name)
    if taken is not None and getattr(taken, "__file__", None) != str(path):
        name += "_component"
    return name, str(folder)


def _is_importable_from(folder: str) -> bool:
    return any(os.path.abspath(entry or ".") == folder for entry in sys.path)
