import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from torchloom.launch.host.identity import ProcessIdentity

pytestmark = pytest.mark.process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its input does, or when it is told."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def of(child: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = ProcessIdentity.of(child.pid)
    assert found is not None
    return found


def zombie_state(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_this_process_is_alive_and_here() -> None:
    me = ProcessIdentity.mine()

    assert me == ProcessIdentity.of(os.getpid())
    assert (me.pid, me.is_here(), me.is_alive()) == (os.getpid(), True, True)


def test_nobody_has_a_pid_that_nobody_has() -> None:
    assert ProcessIdentity.of(2**22 + 1) is None


def test_a_process_with_spaces_and_brackets_in_its_name_is_known_all_the_same() -> None:
    name = "a) b (c"
    rename = f"import sys; open('/proc/self/comm', 'w').write({name!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", rename], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        before = ProcessIdentity.of(process.pid)
        assert process.stdout is not None
        process.stdout.readline()

        assert ProcessIdentity.of(process.pid) == before
        process.kill()


def test_the_same_pid_with_another_start_is_another_process(
    child: subprocess.Popen[bytes],
) -> None:
    earlier = replace(of(child), started="1")

    assert (earlier.is_here(), earlier.is_alive()) == (True, False)


def test_the_same_pid_since_another_boot_is_another_process() -> None:
    before = replace(ProcessIdentity.mine(), boot="another")

    assert (before.is_here(), before.is_alive()) == (False, False)


def test_a_zombie_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    process = of(child)

    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert zombie_state(child.pid)
    assert not process.is_alive()
    assert ProcessIdentity.of(child.pid) is None
    assert process.wait_exit(timeout=0)


def test_a_signal_reaches_the_process_it_is_for(child: subprocess.Popen[bytes]) -> None:
    assert of(child).send(signal.SIGTERM) is True
    assert child.wait() == -signal.SIGTERM


def test_a_reused_pid_is_never_hit(child: subprocess.Popen[bytes]) -> None:
    now = of(child)

    for other in (replace(now, started="1"), replace(now, boot="another")):
        assert other.send(signal.SIGKILL) is False

    assert child.poll() is None
    assert now.is_alive()


def test_a_signal_to_a_process_that_is_gone_is_no_error(child: subprocess.Popen[bytes]) -> None:
    process = of(child)
    child.kill()
    child.wait()

    assert process.send(signal.SIGTERM) is False


def test_the_end_of_a_process_wakes_whoever_waits_for_it(child: subprocess.Popen[bytes]) -> None:
    process = of(child)
    woken = threading.Event()
    waiter = threading.Thread(target=lambda: process.wait_exit() and woken.set())
    waiter.start()
    assert not woken.is_set()

    child.communicate(b"\n")

    assert woken.wait(90)
    waiter.join()


def test_a_wait_ends_at_its_timeout_while_the_process_lives(
    child: subprocess.Popen[bytes],
) -> None:
    before = time.monotonic()

    assert of(child).wait_exit(timeout=0.05) is False
    assert time.monotonic() - before >= 0.05


def test_nobody_waits_for_a_process_that_is_gone_or_was_another(
    child: subprocess.Popen[bytes],
) -> None:
    assert replace(of(child), started="1").wait_exit(timeout=5) is True
    assert replace(of(child), boot="another").wait_exit(timeout=5) is True


def test_a_process_survives_a_trip_through_a_dictionary() -> None:
    me = ProcessIdentity.mine()
    fields = {"host": me.host, "boot": me.boot, "pid": me.pid, "started": me.started}

    assert ProcessIdentity.from_dict(fields) == me
