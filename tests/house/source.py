"""The parsed source of the package: a worker of pytest reads each file once for all tests here."""

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file; no test changes it."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all that is in a file, as `ast.walk` yields it."""
    return tuple(ast.walk(parsed(path)))
