"""Scripts, activate files and .pth files that find their own place."""

import subprocess
from pathlib import Path

import pytest

from torchloom.envs.archive import rewrite

OLD = "/old/env"
FAR = "/" + "long/" * 40 + "env"


@pytest.mark.parametrize(
    ("head", "prefix"),
    [
        (f"#!{OLD}/bin/python3\n", OLD),
        (f"#!{FAR}/bin/python3\n", FAR),
        (f"#!/bin/sh\n'''exec' {FAR}/bin/python3 \"$0\" \"$@\"\n' '''\n", FAR),
        (
            "#!/bin/sh\n'''exec' \"/with space/env/bin/python3\" \"$0\" \"$@\"\n' '''\n",
            "/with space/env",
        ),
    ],
    ids=["short", "too long for the kernel", "pip's long form", "pip's form for spaces"],
)
@pytest.mark.process
def test_a_script_runs_the_interpreter_beside_it(head: str, prefix: str, tmp_path: Path) -> None:
    folder = tmp_path / "new place" / "bin"
    folder.mkdir(parents=True)
    (folder / "python3").write_text('#!/bin/sh\necho "$0" "$@"\n')
    body = "import sys; print(sys.argv)\n"
    (folder / "tool").write_bytes(rewrite("bin/tool", (head + body).encode(), prefix))
    for name in ("python3", "tool"):
        (folder / name).chmod(0o755)
    (tmp_path / "link").symlink_to(folder / "tool")

    done = subprocess.run([tmp_path / "link", "a b", "c"], capture_output=True, text=True)

    assert done.stdout == f"{folder}/python3 {tmp_path}/link a b c\n"
    compile((folder / "tool").read_text(), "tool", "exec")  # it is still Python


def test_flags_of_the_interpreter_are_kept() -> None:
    data = rewrite("bin/tool", f"#!{OLD}/bin/python -I\nx\n".encode(), OLD)

    assert data.splitlines()[1].endswith(b"""/'python' -I "$0" "$@\"""")


@pytest.mark.parametrize(
    "data",
    [
        b"#!/usr/bin/python3\n# /old/env\n",
        b"#!/old/env/bin/perl\n",
        b"#!/old/env2/bin/python\n",
        b"\x7fELF /old/env/lib\0",
    ],
)
def test_what_is_no_script_of_this_environments_python_is_not_touched(data: bytes) -> None:
    assert rewrite("bin/tool", data, OLD) == data


def test_paths_inside_become_relative_and_others_stay() -> None:
    data = b"/old/env/src/pkg\n/old/env2/x\n../kept\nimport os; os.x('/old/env')\n"

    assert rewrite("lib/python3.11/site-packages/a.pth", data, OLD) == (
        b"../../../src/pkg\n/old/env2/x\n../kept\nimport os; os.x('/old/env')\n"
    )


def test_pyvenv_cfg_loses_only_the_command_that_made_it() -> None:
    data = b"home = /usr/bin\nversion = 3.11.2\ncommand = /usr/bin/python -m venv /old/env\n"

    assert rewrite("pyvenv.cfg", data, OLD) == b"home = /usr/bin\nversion = 3.11.2\n"


@pytest.mark.process
@pytest.mark.parametrize(
    "line",
    [
        'VIRTUAL_ENV="/old/env"\nexport VIRTUAL_ENV',
        "VIRTUAL_ENV='/old/env'\nexport VIRTUAL_ENV",
        "case x in y) A=$(cygpath /old/env) ;; *) export VIRTUAL_ENV=/old/env ;; esac",
    ],
    ids=["double", "single", "bare"],
)
def test_activate_finds_its_own_place(line: str, tmp_path: Path) -> None:
    folder = tmp_path / "new place" / "bin"
    folder.mkdir(parents=True)
    (folder / "activate").write_bytes(rewrite("bin/activate", line.encode(), OLD))
    words = ["bash", "-uc", 'cd /; . "$1"; echo "$VIRTUAL_ENV"', "sh", folder / "activate"]

    done = subprocess.run(words, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == (f"{tmp_path}/new place\n", "")
