import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.launch.keeper.python_command import COLD_VARIABLES, PythonCommand, cold_variable


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("python", "x.py", "-v"), ((), "file", "x.py", ("-v",))),
        (("/opt/bin/python3.12", "x.py"), ((), "file", "x.py", ())),
        (("python", "-uBm", "a.b", "-c"), (("-u", "-B"), "module", "a.b", ("-c",))),
        (("python", "-ma.b"), ((), "module", "a.b", ())),
        (("python", "-c", "pass", "x"), ((), "code", "pass", ("x",))),
        (("python", "-W", "error", "x"), (("-Werror",), "file", "x", ())),
        (("python", "-uWerror", "-X", "dev", "x"), (("-u", "-Werror", "-Xdev"), "file", "x", ())),
        (("python", "-u", "-", "x"), (("-u",), "stdin", "-", ("x",))),
        (("python", "-u"), (("-u",), "stdin", "", ())),
        (("python", "--", "-x.py"), ((), "file", "-x.py", ())),
    ],
)
def test_a_command_line_is_read_as_python_reads_it(
    words: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    command = PythonCommand.parse(words)

    assert command is not None
    assert (command.flags, command.what, command.target, command.args) == expected
    assert (command.argv, command.interpreter) == (words, words[0])


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("bash", "-c", "python x.py"),
        ("pythonic", "x.py"),
        ("torchrun", "x.py"),
        ("python", "-V"),
        ("python", "-uV"),
        ("python", "--help"),
        ("python", "-m"),
        ("python", "-W"),
    ],
)
def test_what_runs_no_program_in_python_is_not_a_python_command(words: tuple[str, ...]) -> None:
    assert PythonCommand.parse(words) is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-u", "-B", "-O", "-Wall", "-Xfaulthandler"), None),
        (("-S",), "-S leaves site-packages out, and torch with them"),
        (("-uv",), "-v prints while modules are imported"),
        (("-i",), "-i stays interactive after the program"),
        (("-X", "importtime"), "-Ximporttime changes how the interpreter starts"),
        (("-Xdev",), "-Xdev changes how the interpreter starts"),
    ],
)
def test_flags_that_no_running_interpreter_can_take_over_are_named(
    words: tuple[str, ...], why: str | None
) -> None:
    command = PythonCommand.parse(("python", *words, "-Wv", "x.py", "-S"))

    assert command is not None
    assert command.cold_because() == why


def test_every_variable_that_keeps_a_command_cold_says_why() -> None:
    assert all(cold_variable(name).startswith(f"{name} is set: ") for name in COLD_VARIABLES)


@given(
    st.lists(st.sampled_from(["-u", "-B", "-q", "-Wignore", "-W", "ignore", "-Xa=b", "-OO", "-uE"]))
)
def test_flags_go_through_an_entry_file_unchanged(flags: list[str]) -> None:
    command = PythonCommand.parse(["python", *flags, "x.py", "-c", "y"])
    if command is None or command.target != "x.py":
        return

    through = PythonCommand.parse(command.through("start.py"))

    assert through is not None
    assert (through.flags, through.target) == (command.flags, "start.py")
    assert through.args == ("file", "x.py", "-c", "y")


@pytest.mark.process
@pytest.mark.parametrize(
    "words", [("-uc", "X", "-m"), ("-Bm", "json.tool", "-h"), ("-Wignore", "-", "a")]
)
def test_sys_argv_is_what_python_itself_makes_of_it(words: tuple[str, ...]) -> None:
    code = "import sys; print(sys.argv, sys.orig_argv)"
    asked = [sys.executable, *(code if word == "X" else word for word in words)]
    command = PythonCommand.parse(asked)
    assert command is not None
    if command.what == "module":
        assert command.sys_argv == ["-m", "-h"]
        return

    done = subprocess.run(asked, input=code, capture_output=True, text=True, check=True)

    assert done.stdout == f"{command.sys_argv} {list(command.argv)}\n"
