"""When a job's ranks are forked by a zygote, when they are executed, and what is waited for."""

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchloom.launch.host import sockets
from torchloom.launch.keeper import zygote_client
from torchloom.launch.keeper.client import COLD, ForkChoice
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.launch.protocol import KeeperRequest, RankOrder, ReplicaOrder

STORE = {"LOOM_STORE": "file:///dev/shm/x/attempt-0"}
NO_GAIN = "cold: no zygote is started for a program that does not name torch"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "loom"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "torchloom"


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("import torch\n")
    return str(tmp_path / "train.py")


def environment(**more: str) -> dict[str, str]:
    names = ("PATH", "PYTHONPATH", "HOME")
    return {name: os.environ[name] for name in names if name in os.environ} | more


def order(argv: Sequence[str], cwd: str = "/", grouped: bool = True) -> ReplicaOrder:
    ranks = (RankOrder(0, "trainer/0/0", {}),)
    return ReplicaOrder("trainer", 0, 0, tuple(argv), cwd, ranks, grouped=grouped)


def decide(warmth: ForkChoice, asked: ReplicaOrder, **env: str) -> object:
    facts = ("train-1", "n1", "/none", 5.0)
    request = KeeperRequest(*facts, argv=asked.argv, env=environment(**env), cwd=asked.cwd)
    return warmth.keeper(request, asked)


def zygote_of(*argv: str) -> zygote_client.ZygoteClient:
    found = zygote_client.find(PythonCommand.parse(argv), environment(), "/")
    assert isinstance(found, zygote_client.ZygoteClient), found
    return found


@contextmanager
def coming(zygote: zygote_client.ZygoteClient) -> Iterator[None]:
    """Hold the lock that a zygote holds while it lives."""
    path = sockets.socket_path(f"zygote-{zygote.key}.lock")
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def none_was_started(runtime: Path) -> bool:
    return not list(runtime.glob("zygote-*.log"))


@pytest.mark.parametrize(
    ("argv", "env", "said"),
    [
        (("sleep", "1"), {}, "cold: not a Python program"),
        ((sys.executable, "-v", "x.py"), {}, "cold: -v prints while modules are imported"),
        ((sys.executable, "x.py"), {"LOOM_WARM": "0"}, "cold: LOOM_WARM=0"),
        (("/not/here/python", "x.py"), {}, "cold: there is no /not/here/python"),
    ],
)
def test_what_no_zygote_can_run_is_executed_and_the_reason_kept(
    argv: tuple[str, ...], env: dict[str, str], said: str, runtime: Path
) -> None:
    warmth = ForkChoice()

    assert decide(warmth, order(argv), **env) == COLD
    assert (warmth.said, warmth.is_warm) == (said, False)
    assert none_was_started(runtime)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("words", "text", "grouped"),
    [
        (("train.py",), "print('nothing of the kind')\n", True),
        (("gone.py",), "", True),
        (("-m", "json.tool"), "", False),
        (("-c", "pass"), "", False),
    ],
)
def test_a_program_that_gains_nothing_starts_no_zygote(
    words: tuple[str, ...], text: str, grouped: bool, runtime: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(text)
    warmth = ForkChoice()

    found = decide(warmth, order((sys.executable, *words), str(tmp_path), grouped))

    assert (found, warmth.said) == (COLD, NO_GAIN)
    assert none_was_started(runtime)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("grouped", [True, False])
def test_a_group_waits_for_its_zygote_and_a_lone_program_does_not(
    grouped: bool, train: str
) -> None:
    asked, warmth = order((sys.executable, train), grouped=grouped), ForkChoice()

    with coming(zygote_of(sys.executable, train)):
        found = [decide(warmth, asked) for _ in range(3)]

    assert found == ([None] * 3 if grouped else [COLD] * 3)


@pytest.mark.needs("torch")
def test_a_zygote_that_lately_could_not_live_is_not_tried_again(train: str, runtime: Path) -> None:
    asked, warmth = order((sys.executable, train)), ForkChoice()
    excuse = zygote_client.excuse_path(zygote_of(sys.executable, train).address)
    excuse.write_text("torch could not be imported")

    found = [decide(warmth, asked), decide(warmth, asked)]

    assert found[-1] == COLD
    assert warmth.said == "cold: torch could not be imported"
    assert none_was_started(runtime)


@pytest.mark.needs("torch")
def test_an_entry_of_ours_stands_before_a_rank_that_has_a_store(train: str) -> None:
    argv = (sys.executable, "-u", train, "--lr", "1")

    words = ForkChoice().words(argv, environment(**STORE), "/")

    assert words[:2] == (sys.executable, "-u")
    assert words[2].endswith("/torchloom/worker/start.py")
    assert words[-3:] == (train, "--lr", "1")


@pytest.mark.needs("torch")
def test_other_ranks_are_executed_as_they_were_asked_for(train: str) -> None:
    python = (sys.executable, train)
    warm_one = ForkChoice()
    warm_one.is_warm = True

    assert ForkChoice().words(python, environment(), "/") == python
    assert ForkChoice().words(("sleep", "1"), environment(**STORE), "/") == ("sleep", "1")
    assert warm_one.words(python, environment(**STORE), "/") == python
    missing = ("/not/here/python", train)
    assert ForkChoice().words(missing, environment(**STORE), "/") == missing
