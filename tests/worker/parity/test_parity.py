"""A warm rank is told from a fresh interpreter by nothing but its speed; nor is a cold one."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .ranks import (
    SCRIPTS,
    SET_FLAGS,
    SET_VARIABLES,
    Outcome,
    Process,
    Ranks,
    base,
    cold_words,
    parent_of,
    zygotes,
)

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


@dataclass(frozen=True)
class Case:
    """How a script is run: its words, or `-m` and `-c`, its input and variables of its own."""

    words: tuple[str, ...]
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    is_witnessed: bool = True


def _scripts(*names: str) -> dict[str, Case]:
    return {name: Case((f"{name}.py",)) for name in names}


CASES = {
    **_scripts("main", "path", "exit_number", "exit_text", "exit_nothing", "uncaught"),
    **_scripts("excepthook", "endings", "unraisable", "handlers", "interrupt", "killed"),
    **_scripts("threads", "futures", "loader"),
    **{f"mp_{how}": Case(("mp.py", how)) for how in ("fork", "spawn", "forkserver")},
    **_scripts("training", "compiled", "leave_at_once", "warned", "flags", "thread_counts"),
    **_scripts("torch_logs", "surroundings", "descriptors", "streams", "variables", "pickled"),
    **_scripts("source", "faults", "closed_output", "logged", "collector", "seeded"),
    "argv": Case(("./argv.py", "-v", "", "two words", "ä")),
    "reading": Case(("reading.py",), stdin="one\ntwo\nthree"),
    "places": Case(("places.py",), env={"TMPDIR": "/var/tmp", "TZ": "Asia/Tokyo"}),
    "module": Case(("-m", "package.tool", "-m", "x")),
    "module's file": Case(("-mpackage",)),
    "interrupted module": Case(("-m", "interrupt_module")),
    "folder": Case(("folder", "x")),
    "code": Case(("-c", "import witness, sys; print(sys.argv, sys.path[0], __loader__); 1/0", "x")),
    "stdin": Case(("-", "x"), stdin="import witness, sys\nprint(sys.argv, sys.path[0])\n1/0\n"),
    "no file": Case(("nothing.py",), is_witnessed=False),
    "no module": Case(("-m", "nothing.at.all"), is_witnessed=False),
    "syntax": Case(("syntax.txt",), is_witnessed=False),
}
SET_CASES = {
    **_scripts("crash", "faults", "flags", "hashed", "leave_at_once", "streams", "thread_counts"),
    **_scripts("torch_logs", "variables", "warned"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_the_same_plain_cold_and_warm(name: str, plain: Ranks, tmp_path: Path) -> None:
    _compare(CASES[name], (sys.executable,), base(), plain, tmp_path)


@pytest.mark.parametrize("name", SET_CASES)
def test_a_program_with_flags_and_variables_is_the_same_plain_cold_and_warm(
    name: str, given: Ranks, tmp_path: Path
) -> None:
    start = (sys.executable, *SET_FLAGS)
    _compare(SET_CASES[name], start, {**base(), **SET_VARIABLES}, given, tmp_path)


def _compare(
    case: Case, start: tuple[str, ...], env: Mapping[str, str], ranks: Ranks, folder: Path
) -> None:
    words = (*start, *case.words)

    def variables(kind: str) -> dict[str, str]:
        return {**env, **case.env, "WITNESS": str(folder / kind)}

    plain = Process(words, variables("plain"), case.stdin, SCRIPTS)
    cold = Process(cold_words(words), variables("cold"), case.stdin, SCRIPTS)
    warm = ranks.run(words, variables("warm"), case.stdin)
    expected = _cleaned(plain.outcome())

    assert _cleaned(warm) == expected
    assert _cleaned(cold.outcome()) == expected
    if case.is_witnessed:
        seen = {kind: json.loads((folder / kind).read_text()) for kind in ("plain", "cold", "warm")}
        assert {kind: found["warm"] for kind, found in seen.items()} == {
            "plain": False,
            "cold": False,
            "warm": True,
        }
        assert seen["warm"]["parent"] == ranks.keeper_pid


def _cleaned(outcome: Outcome) -> Outcome:
    """Leave out addresses, and what a crash says of compiled modules in memory."""
    texts = []
    for text in (outcome.stdout, outcome.stderr):
        text = re.sub(r"0x[0-9a-f]+", "0x", text)
        texts.append(re.sub(r"\n\nExtension modules: .*", "", text))
    return Outcome(outcome.code, *texts)


def test_the_keeper_of_the_warm_ranks_is_a_child_of_the_zygote(plain: Ranks) -> None:
    assert zygotes(plain.zygote.key) == [parent_of(plain.keeper_pid)]
