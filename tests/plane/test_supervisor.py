"""A part that ends is started again after a growing pause; one that lived long starts afresh."""

import os
import sys
from pathlib import Path

import pytest

from torchloom.launch.host.restarter import FIRST_PAUSE, LONGEST_PAUSE
from torchloom.plane.parts import PartProcess, PartSupervisor, PlanePart

from ..harness.home import until
from .conftest import alive

pytestmark = pytest.mark.process


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def part(tmp_path: Path, code: str, name: str = "one") -> PlanePart:
    argv = (sys.executable, "-S", "-c", code)
    return PlanePart(name, argv, {"A": "1"}, tmp_path / "logs" / f"{name}.log")


def ended(supervisor: PartSupervisor, child: PartProcess) -> None:
    """Wait for the child's process to be over, and have it reaped."""

    def over() -> bool:
        supervisor.check()
        return child.pid is None

    until(over)


def test_the_pause_doubles_up_to_a_limit_and_is_short_again_after_a_long_life(
    tmp_path: Path,
) -> None:
    clock = Clock()
    supervisor = PartSupervisor(clock)
    child = supervisor.start(part(tmp_path, "raise SystemExit('no')"))
    pauses = []

    for _ in range(9):
        ended(supervisor, child)
        pauses.append(round((child.due or 0) - clock.now, 3))
        clock.now = child.due or 0
        supervisor.check()
    clock.now += 11
    ended(supervisor, child)

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_PAUSE, LONGEST_PAUSE]
    assert round((child.due or 0) - clock.now, 3) == FIRST_PAUSE
    assert (child.ends, child.how, child.part.last_log_line()) == (1, "exit 1", "no")
    supervisor.end()


def test_a_part_that_cannot_be_executed_is_an_end_like_another(tmp_path: Path) -> None:
    supervisor = PartSupervisor()
    missing = str(tmp_path / "missing")

    child = supervisor.start(PlanePart("one", (missing,), {}, tmp_path / "one.log"))

    assert (child.pid, child.ends) == (None, 1)
    assert child.how == f"cannot start: No such file or directory: {missing}"
    supervisor.end()


def test_a_part_has_its_own_environment_and_session_and_writes_to_its_log(tmp_path: Path) -> None:
    supervisor = PartSupervisor()
    code = "import os, time; print(dict(os.environ), os.getsid(0) == os.getpid(), flush=True)"

    child = supervisor.start(part(tmp_path, f"{code}; time.sleep(60)"))
    until(lambda: child.part.last_log_line())

    assert child.part.last_log_line().startswith("{'A': '1'")
    assert child.part.last_log_line().endswith("} True")
    assert child.part.log.stat().st_mode & 0o777 == 0o600
    supervisor.end()


def test_the_end_is_asked_for_and_then_forced(tmp_path: Path) -> None:
    supervisor = PartSupervisor()
    polite = supervisor.start(part(tmp_path, "import time; time.sleep(60)", "polite"))
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    deaf = supervisor.start(part(tmp_path, f"{code}; time.sleep(60)", "deaf"))
    pids = [polite.pid or 0, deaf.pid or 0]
    until(lambda: deaf.part.last_log_line())

    supervisor.end(grace=0.2)

    assert [alive(pid) for pid in pids] == [False, False]
    assert supervisor.check() is None
    for pid in pids:  # nobody is left to be waited for
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_a_log_that_grew_too_long_is_put_aside(tmp_path: Path) -> None:
    one = part(tmp_path, "print('new')")
    one.log.parent.mkdir()
    one.log.write_bytes(b"x" * (5 << 20))
    supervisor = PartSupervisor()

    ended(supervisor, supervisor.start(one))

    assert one.log.read_text() == "new\n"
    assert one.log.with_suffix(".old").stat().st_size == 5 << 20
    supervisor.end()


def test_the_log_of_a_process_that_writes_without_end_stays_bounded(tmp_path: Path) -> None:
    code = "import itertools\nfor n in itertools.count(): print(n, 'x' * 1000, flush=True)"
    supervisor = PartSupervisor()
    child = supervisor.start(part(tmp_path, code))
    old, largest = child.part.log.with_suffix(".old"), 0

    def has_written_forty_megabytes() -> bool:
        nonlocal largest
        supervisor.bound_logs()
        largest = max(largest, child.part.log.stat().st_size)
        lines = old.read_text().splitlines() if old.exists() else []
        return len(lines) > 1 and int(lines[-2].split()[0]) > 40_000

    until(has_written_forty_megabytes)

    assert child.pid is not None
    assert alive(child.pid)
    assert largest < 30 << 20
    assert 4 << 20 < old.stat().st_size <= 16 << 20
    assert old.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in old.parent.iterdir()) == ["one.log", "one.old"]
    until(lambda: child.part.log.stat().st_size)  # it writes on, to the same file
    supervisor.end()
