"""The store process serves on the socket it was given, waits for nobody, and never outlives us."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...harness import forked_ranks as ranks
from ...harness.forked_ranks import Zygote, seats
from ...harness.home import TIMEOUT, until

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]

CLIENT = """
import datetime, sys, time, torch.distributed as dist
begun = time.monotonic()
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), timeout=datetime.timedelta(seconds=60))
took = time.monotonic() - begun
store.set("key", "value")
print(store.get("key").decode(), int(took))
"""
Store = subprocess.Popen[str]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


@contextlib.contextmanager
def serving(listener: socket.socket) -> Iterator[Store]:
    """Start the process on the socket, and end it afterwards if it has not ended itself."""
    fd = listener.fileno()
    with subprocess.Popen(
        [sys.executable, "-m", "torchloom.worker.process.store", str(fd)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[fd],
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def client(listener: socket.socket, **more: str) -> Store:
    host, port = listener.getsockname()
    words = [sys.executable, "-c", CLIENT, host, str(port)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **more})


def ready(store: Store) -> None:
    assert store.stdout is not None
    assert store.stdout.readline() == "ready\n"


def test_a_client_that_comes_first_waits_for_the_store(listener: socket.socket) -> None:
    early = client(listener)
    until(lambda: _connected(listener.getsockname()[1]))

    assert early.poll() is None
    with serving(listener) as store:
        ready(store)
        out, _ = early.communicate(timeout=TIMEOUT)

    assert out.startswith("value")


def _connected(port: int) -> bool:
    """Tell whether the kernel has a client of the port, by its own table."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


@pytest.mark.parametrize("how", ["SIGTERM", "stdin", "parent"])
def test_the_store_ends_by_a_signal_with_its_stdin_or_with_its_parent(
    listener: socket.socket, how: str
) -> None:
    if how == "parent":
        assert _ends_with_its_parent(listener)
        return
    with serving(listener) as store:
        ready(store)
        if how == "SIGTERM":
            store.terminate()
        else:
            assert store.stdin is not None
            store.stdin.close()

        assert store.wait(TIMEOUT) == (-signal.SIGTERM if how == "SIGTERM" else 0)


def _ends_with_its_parent(listener: socket.socket) -> bool:
    start = (
        "import subprocess, sys, time; words = sys.argv[1:]\n"
        "one = subprocess.Popen(words, stdin=open('/dev/null'), pass_fds=[int(words[-1])])\n"
        "print(one.pid, flush=True); one.wait()"
    )
    fd = str(listener.fileno())
    words = [
        sys.executable,
        "-c",
        start,
        sys.executable,
        "-m",
        "torchloom.worker.process.store",
        fd,
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, pass_fds=[int(fd)]) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        alive = Path(f"/proc/{pid}").exists()
        parent.kill()
        until(lambda: _gone(pid))
    return alive


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_terminals_interrupt_does_not_end_the_store(listener: socket.socket) -> None:
    with serving(listener) as store:
        ready(store)
        store.send_signal(signal.SIGINT)
        store.send_signal(signal.SIGHUP)
        out, _ = client(listener).communicate(timeout=TIMEOUT)

        assert out.startswith("value")
        assert store.poll() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("socket.create_server(('0.0.0.0', 0))", "listens on all addresses; bind it to one"),
        ("socket.create_server(('::', 0), family=socket.AF_INET6)", "listens on all addresses"),
        ("socket.socket()", "is not a listening TCP socket; bind and listen first"),
        ("socket.socketpair()[0]", "is not a listening TCP socket; bind and listen first"),
        ("open('/dev/null')", "is not a socket"),
    ],
)
def test_what_is_no_listening_socket_of_one_address_is_refused(make: str, message: str) -> None:
    script = f"import socket, sys\nfrom torchloom.worker.process import store\none = {make}\n"
    words = [sys.executable, "-c", f"{script}sys.exit(store.main([str(one.fileno())]))"]

    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with ranks.started_zygote() as one:
        yield one


MEET = """
import torch, torch.distributed as dist
for _ in range({times}):
    dist.init_process_group("gloo")
    value = torch.ones(1) * dist.get_rank()
    dist.all_reduce(value)
    print(value.item())
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("times", "install"), [(1, False), (3, True)])
def test_ranks_meet_in_the_store_process(
    zygote: Zygote, listener: socket.socket, times: int, install: bool
) -> None:
    """Torch's own handler meets once; with ours a process may do so again and again."""
    port = listener.getsockname()[1]
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "RES_OPTIONS": "timeout:1 attempts:1"}
    told = seats(4, port, f"tcp://127.0.0.1:{port}" if install else "", **agent)

    with serving(listener) as store:
        ended = zygote.run(MEET.format(times=times), told, install=install)
        store.kill()

    assert [(code, text.splitlines()[-times:]) for code, text in ended] == [
        (0, ["6.0"] * times)
    ] * 4


@pytest.mark.needs("mount")
def test_a_resolver_that_never_answers_costs_a_second_not_ten(
    listener: socket.socket, tmp_path: Path
) -> None:
    """Torch's client asks for its peer's name; `RES_OPTIONS` is what bounds that."""
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.153", 53))
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.153\n")
    mount = f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf"
    words = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c"]
    host, port = listener.getsockname()

    with silent, serving(listener) as store:
        ready(store)
        asking = [
            subprocess.Popen(
                [*words, CLIENT, host, str(port)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "RES_OPTIONS": options},
            )
            for options in ("", "timeout:1 attempts:1")
        ]
        answers = [one.communicate(timeout=TIMEOUT)[0].split() for one in asking]

    (unbounded, bounded) = [int(seconds) for _, seconds in answers]
    assert unbounded >= 5
    assert bounded < unbounded / 2
