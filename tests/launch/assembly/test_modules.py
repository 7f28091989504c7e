"""Commands that run after `module load`, as a real shell understands them."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from torchloom.launch.assembly.launchers import AssemblyRequest, after_modules, with_modules
from torchloom.launch.assembly.topology import HostTopology
from torchloom.launch.shim import FOLDER
from torchloom.launch.variables import MODULES_VARIABLE

# What a module system does to a shell, in short; `bad` is a module that it does not have.
MODULE = """
module() {
    [ "$1 $2" != "load bad" ] || { echo "no module bad" >&2; return 1; }
    echo "loading $2"
    export LOADEDMODULES="$LOADEDMODULES:$2/1.0" PATH="/software/$2:$PATH"
}
"""
PRINT = ["sh", "-c", 'printf "%s\\n" "$PATH" "$LOADEDMODULES" "$LOOM_MODULES" "$@"', "sh"]


@pytest.fixture
def init(tmp_path: Path) -> Path:
    """A file that defines `module`."""
    path = tmp_path / "init/bash"
    path.parent.mkdir()
    path.write_text(MODULE)
    return path


def run(words: tuple[str, ...], env: Mapping[str, str]) -> tuple[int, list[str], str]:
    unset = ("BASH_ENV", "MODULESHOME", "LMOD_PKG", "LOADEDMODULES", MODULES_VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        words, env={**kept, "PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("found_by", ["BASH_ENV", "MODULESHOME", "LMOD_PKG"])
def test_modules_are_loaded_in_order_before_the_command(found_by: str, init: Path) -> None:
    where = init if found_by == "BASH_ENV" else init.parents[1]

    code, said, err = run(
        after_modules([*PRINT, "a b", "", "$HOME"], ["cuda", "nccl"]), {found_by: str(where)}
    )

    path = f"{FOLDER}:/software/nccl:/software/cuda:/usr/bin:/bin"
    assert (code, said) == (0, [path, ":cuda/1.0:nccl/1.0", "", "a b", "", "$HOME"])
    assert err == "loading cuda\nloading nccl\n"


@pytest.mark.parametrize("loaded", ["cuda", "cuda/11.8", "x/1:cuda/11.8:y/2"])
def test_a_module_of_which_a_version_is_loaded_stays_as_it_is(loaded: str, init: Path) -> None:
    env = {"BASH_ENV": str(init), "LOADEDMODULES": loaded}

    code, said, _ = run(after_modules(PRINT, ["cuda"]), env)

    assert (code, said) == (0, [f"{FOLDER}:/usr/bin:/bin", loaded, ""])


def test_a_host_without_module_is_refused_with_the_remedy() -> None:
    code, said, err = run(after_modules(PRINT, ["cuda", "nccl"]), {})

    assert (code, said) == (2, [])
    assert err == (
        f"loom: {os.uname().nodename} has no `module` to load cuda nccl; remove them from its "
        "entry in $LOOM_HOME/sites.toml, or set LOOM_MODULES= to load none\n"
    )


def test_a_module_that_does_not_load_is_named(init: Path) -> None:
    code, said, err = run(after_modules(PRINT, ["cuda", "bad", "nccl"]), {"BASH_ENV": str(init)})

    assert (code, said) == (2, [])
    assert err == (
        f"loading cuda\nno module bad\nloom: {os.uname().nodename}: `module load bad` failed\n"
    )


def test_a_name_is_no_shell_text(init: Path) -> None:
    code, said, err = run(after_modules(PRINT, ["$(id)`id`;x'y"]), {"BASH_ENV": str(init)})

    assert (code, err) == (0, "loading $(id)`id`;x'y\n")
    assert said[1] == ":$(id)`id`;x'y/1.0"


def test_only_a_request_that_says_so_is_changed() -> None:
    request = AssemblyRequest(("true",), HostTopology(("n1",), (1,)), {MODULES_VARIABLE: ""})
    asking = AssemblyRequest(
        ("true",), HostTopology(("n1",), (1,)), {MODULES_VARIABLE: "cuda  nccl"}
    )

    assert with_modules(request) == request
    assert with_modules(asking).command == after_modules(["true"], ["cuda", "nccl"])
