"""Every module that is started by name starts, and every one that is so named is in the table."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.entry_points import EARLIER, FILES, MODULES

from ..harness.home import TIMEOUT
from .source import parsed

SRC = Path(__file__).resolve().parents[2] / "src"
HELP = r"(?i)^usage: "
# Words that each refuses, and what it then says. Those that only our own code starts have no
# help: without their arguments they fail in their `main`, with all modules imported.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "torchloom": (("--help",), HELP),
    "torchloom.accounts": ((), r"in main\n(?s:.*)IndexError"),
    "torchloom.cli.batch": (("/nowhere",), r"^loom: /nowhere/job.json cannot be read"),
    "torchloom.chaos.undo": ((), r"undo.py.*in <module>\n(?s:.*)IndexError"),
    "torchloom.cli.torchrun": (("--help",), HELP),
    "torchloom.components.copy_file": (("--help",), HELP),
    "torchloom.launch.agent.node": (("nowhere",), r"KeyError: 'LOOM_AGENT_OF'"),
    "torchloom.launch.hosts.native_rank": (
        ("true",),
        r"^loom: no launcher set this process' rank",
    ),
    "torchloom.launch.supervisor.process": ((), r"in main\n(?s:.*)IndexError"),
    "torchloom.launch.node_agent": (("--help",), HELP),
    "torchloom.monitor_cli": (("--help",), HELP),
    "torchloom.server": (("--help",), HELP),
    "torchloom.weaver": (("--help",), HELP),
    "torchloom.weaver.account_runs": ((), r"in main\n(?s:.*)JSONDecodeError"),
    "torchloom.weaver.core": (("--help",), HELP),
    "torchloom.plane": ((), r"the plane cannot start: .*LOOM_HOME"),
    "torchloom.worker.inspecting": ((), r"in main\n(?s:.*)IndexError|JSONDecodeError"),
    "torchloom.worker.servers": ((), r"^loom server: no job in LOOM_JOB_SPEC"),
    "torchloom.worker.smoke": (("--help",), HELP),
    "torchloom.worker.process.store": (("--help",), HELP),
    "torchloom.worker.train": (("/nowhere.yaml",), r"^loom train: .*/nowhere.yaml"),
    "torchloom.worker.process.zygote": ((), r"in main\n(?s:.*)ValueError: not enough values"),
}


@pytest.mark.process
@pytest.mark.parametrize("module", [*MODULES, *EARLIER])
def test_every_entry_point_gets_past_its_imports(module: str, tmp_path: Path) -> None:
    words, said = REFUSED[EARLIER.get(module, module)]
    (tmp_path / "file").touch()
    own = {"LOOM_HOME": str(tmp_path / "file"), "XDG_RUNTIME_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        env={**os.environ, **own},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )

    assert re.search(said, done.stdout, re.M), done.stdout
    assert "ImportError" not in done.stdout
    assert "ModuleNotFoundError" not in done.stdout


def test_all_that_can_be_started_is_in_the_table() -> None:
    found = {path.relative_to(SRC / "torchloom").as_posix() for path in _mains()}
    modules = {_file_of(name) for name in (*MODULES, *EARLIER)}

    assert found == modules | set(FILES)


def test_every_entry_point_is_tried() -> None:
    assert sorted(REFUSED) == sorted(MODULES)


def _mains() -> Iterator[Path]:
    for path in SRC.rglob("*.py"):
        tests = (node.test for node in parsed(path).body if isinstance(node, ast.If))
        if any(ast.unparse(test) == "__name__ == '__main__'" for test in tests):
            yield path


def _file_of(module: str) -> str:
    place = "/".join(module.split(".")[1:])
    package = SRC / "torchloom" / place
    inside = f"{place}/__main__.py" if place else "__main__.py"
    return inside if package.is_dir() else f"{place}.py"
