"""Cut one function out of its module together with everything it needs, as text that runs."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path


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
