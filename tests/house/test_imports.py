"""`launch` and `worker` import few packages of others; each is listed with a reason."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from .source import nodes

SOURCE = Path(__file__).resolve().parents[2] / "src" / "torchloom"
MOST = 8
ALWAYS = {
    "torch": "what a rank trains with; imported in the worker only",
    "msgspec": "encodes the messages between a rank, its agent and the weaver",
    "xxhash": "checks the bytes of pages and transfers in live recovery",
    "threadpoolctl": "stops the threads of BLAS and OpenMP before the zygote forks",
}
ON_USE = {
    "numpy": "reads the .npy datasets of the ready-made training",
    "safetensors": "writes the format of that name; an extra",
    "pynvml": "reads the sensors of NVIDIA GPUs where it is installed",
}
FRAMEWORKS = {  # each by one adapter of the ready-made training
    "jax": "computes the steps of `framework: jax`; an extra",
    "tensorflow": "computes the steps of `framework: tensorflow`; an extra",
    "transformers": "has the models of `framework: huggingface`; an extra",
}


def _texts(path: Path) -> dict[str, str]:
    """Return the texts that names stand for: constants, and arguments that default to them."""
    found: dict[str, str] = {}
    for node in nodes(path):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                found[name] = text
            case ast.arguments(args=[*args], defaults=[*defaults]):
                given = zip(reversed(args), reversed(defaults), strict=False)
                found |= {arg.arg: found.get(ast.unparse(value), "") for arg, value in given}
    return {name: text for name, text in found.items() if text}


def _imported(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, also inside functions and by `import_module`."""
    names = _texts(path)
    for node in nodes(path):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if _imports(node):
                yield module
            case ast.Call(args=[ast.Name(id=name), *_]) if _imports(node) and name in names:
                yield names[name]


def _imports(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in ("import_module", "__import__")


def _packages(room: str) -> set[str]:
    files = (SOURCE / room).rglob("*.py")
    tops = {name.partition(".")[0] for file in files for name in _imported(file)}
    return tops - set(sys.stdlib_module_names) - {"torchloom"}


def test_launch_and_worker_import_few_packages_of_others() -> None:
    found = _packages("launch") | _packages("worker")

    print(f"{len(found)} packages: {', '.join(sorted(found))}")
    assert found == {*ALWAYS, *ON_USE, *FRAMEWORKS}
    assert len(found - FRAMEWORKS.keys()) <= MOST


def test_the_launcher_needs_no_package_that_trains() -> None:
    assert _packages("launch") <= {"msgspec", "pynvml"}
