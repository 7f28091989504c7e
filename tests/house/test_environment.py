"""The worker has one module that reads and sets the process environment."""

import ast
from pathlib import Path

from .source import nodes

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "src" / "torchloom" / "worker"
NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
ALLOWED = {
    "environment.py": "the one module; all others call it",
    "process/fork_cleanup.py": "replaces the zygote's environment by the rank's in a fork",
    "process/program.py": "runs by its path in interpreters that may have no torchloom",
    "process/rendezvous.py": "reads and marks the variables of `env://` for child processes",
    "process/store.py": "sets variables of the C library and torch before torch is imported",
    "process/zygote.py": "compares its own environment with that of the ranks it forks",
    "threadlet/site/sitecustomize.py": "runs in every interpreter, before torchloom is imported",
}


def _touches(path: Path) -> bool:
    """Tell whether a module uses a name of `os` that reads or sets the environment."""
    used = {ast.unparse(node) for node in nodes(path) if isinstance(node, ast.Attribute)}
    imports = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
    used |= {f"os.{each.name}" for node in imports if node.module == "os" for each in node.names}
    return not used.isdisjoint(f"os.{name}" for name in NAMES)


def test_only_listed_modules_of_the_worker_touch_the_environment() -> None:
    found = {p.relative_to(WORKER).as_posix() for p in WORKER.rglob("*.py") if _touches(p)}

    print(f"{len(found)} modules touch os.environ")
    assert found == set(ALLOWED)
