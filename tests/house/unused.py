"""Find public functions, methods and classes of the package that only tests name.

Names are compared, not resolved: a function counts as used when anything of the same name is used
outside of its own body. So what is found is unused, and some that is unused is not found.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/torchloom"
_CALLERS = ("src", "benchmarks", "make", "examples")
_TEXTS = ("pyproject.toml", "README.md", "nats/*", "docs/**/*.md")
_PLAIN = {"property", "staticmethod", "classmethod", "abstractmethod", "contextmanager"}
_PLAIN |= {"asynccontextmanager", "cache", "lru_cache", "cached_property", "dataclass", "overload"}
_BASES = {"ABC", "Enum", "Exception", "Generic", "Protocol", "StrEnum", "Struct", "BaseModel"}
_WORDS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Definition:
    """A public function, method or class: where it is, and the names that its own body uses."""

    module: str
    name: str
    own: Counter[str]

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def unused() -> list[Definition]:
    """Return what nothing but tests names, in the order of the files."""
    files = [file for folder in _CALLERS for file in sorted((ROOT / folder).rglob("*.py"))]
    trees = {file: ast.parse(file.read_text()) for file in files}
    used = Counter[str]()
    for tree in trees.values():
        used.update(names_in(tree))
    ours = {file: tree for file, tree in trees.items() if file.is_relative_to(PACKAGE)}
    classes = {one.name for tree in ours.values() for one in ast.walk(tree) if _is_class(one)}
    definitions = [
        each
        for file, tree in ours.items()
        for each in _defined(tree, str(file.relative_to(PACKAGE)), classes | _BASES)
    ]
    documented = set(_documented())
    return [
        each
        for each in definitions
        if (last := each.name.rpartition(".")[2]) not in documented and used[last] <= each.own[last]
    ]


def names_in(tree: ast.AST) -> Counter[str]:
    """Return how often each name is used: read, called, imported, or spelled as a text."""
    found: Counter[str] = Counter()
    docstrings = {id(text) for text in _docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[node.attr] += 1
        elif isinstance(node, ast.ImportFrom):
            same = (alias for alias in node.names if alias.asname != alias.name)
            found.update(alias.name for alias in same)
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            found.update(_spelled(node.value))
    return found


def _spelled(value: object) -> list[str]:
    """Return the names that a text consists of; prose has none."""
    words = value.split() if isinstance(value, str) else []
    is_list = len(words) == 1 or any("_" in word or not word.islower() for word in words)
    return words if is_list and all(map(str.isidentifier, words)) else []


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _defined(tree: ast.Module, module: str, classes: Collection[str]) -> Iterator[Definition]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _of_class(node, module, classes)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_open(node):
            yield Definition(module, node.name, names_in(node))


def _of_class(node: ast.ClassDef, module: str, classes: Collection[str]) -> Iterator[Definition]:
    """Yield a class and its methods; those of a subclass of another library may be called by it."""
    if _is_open(node):
        yield Definition(module, node.name, names_in(node))
    if not {_last_name(base) for base in node.bases} <= classes:
        return
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and _is_open(member):
            yield Definition(module, f"{node.name}.{member.name}", names_in(member))


def _is_class(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef)


def _is_open(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Tell whether this is public and not registered by a decorator that others define."""
    decorators = {_last_name(each) for each in node.decorator_list}
    return not node.name.startswith("_") and decorators <= _PLAIN


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call | ast.Subscript):
        return _last_name(node.func if isinstance(node, ast.Call) else node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _documented() -> Iterable[str]:
    """Return the words of what is code in the documents: users may call it."""
    for pattern in _TEXTS:
        for file in ROOT.glob(pattern):
            if file.is_file():
                text = file.read_text(errors="replace")
                code = _CODE.findall(text) if file.suffix == ".md" else [text]
                yield from _WORDS.findall("\n".join(code))
