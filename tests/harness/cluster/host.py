"""One host: namespaces with a name and an address, held by a small process."""

import contextlib
import ctypes
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .leftovers import net_of

HOLD = Path(__file__).with_name("hold.sh")
APART = ["--net", "--uts", "--ipc", "--mount", "--propagation=private", "--pid", "--fork"]
SHADOW = "root:*:19000:0:99999:7:::\n"  # sshd lets nobody in whose account is locked with a `!`
NEW_PID = 0x20000000  # CLONE_NEWPID of <sched.h>


@dataclass(frozen=True)
class Host:
    """A host that is up; commands enter it by its holder."""

    name: str
    address: str
    holder: subprocess.Popen[str]
    net: str

    def enter(self) -> list[str]:
        """Return the words that run what follows on this host, in the same process."""
        target = f"--target={self.holder.pid}"
        return ["nsenter", target, "--net", "--uts", "--ipc", "--mount", "--"]

    @contextlib.contextmanager
    def numbering(self) -> Iterator[None]:
        """Give what this thread starts meanwhile its process number on the host.

        The caller stays the parent and knows the process by the number it has out here.
        """
        _children_in(Path(f"/proc/{self.holder.pid}/ns/pid_for_children"))
        try:
            yield
        finally:
            _children_in(Path("/proc/self/ns/pid"))

    def own_pids(self) -> set[int]:
        """Return the holder and the host's first process."""
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text()
        return {self.holder.pid, *map(int, children.split())}

    def act(self, *words: str, stdin: str = "") -> None:
        """Run one short command on the host; it must succeed."""
        command = [*self.enter(), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: {done.stderr.strip()}")


def release(holder: subprocess.Popen[str]) -> None:
    """End a holder, and with it its host."""
    holder.kill()  # its child, the host's first process, is killed with it
    holder.communicate()


def raise_hosts(names: Mapping[str, str], folder: Path, env: Mapping[str, str]) -> list[Host]:
    """Start a holder for each name and address, side by side; all or none."""
    known = "".join(f"{address} {name}\n" for name, address in names.items())
    holders = []
    try:
        for name in names:
            _write_files(name, folder, known)
            holders.append(_start(name, folder / name, env))
        parts = zip(names.items(), holders, strict=True)
        return [_ready(*named, holder, folder) for named, holder in parts]
    except BaseException:
        for holder in holders:
            release(holder)
        raise


def wire(switch: Host, hosts: list[Host], prefix: int) -> None:
    """Give the switch a bridge with its address, and each host a cable from eth0 to it."""
    cables = [
        f"link add {host.name} netns {switch.holder.pid}"
        f" type veth peer name eth0 netns {host.holder.pid}\n"
        for host in hosts
    ]
    subprocess.run(["ip", "-batch", "-"], input="".join(cables), text=True, check=True)
    ports = [f"link set {host.name} master eth0 up\n" for host in hosts]
    bridge = ["link add eth0 type bridge\n", *_address(switch, prefix), *ports]
    switch.act("ip", "-batch", "-", stdin="".join(bridge))
    for host in hosts:
        host.act("ip", "-batch", "-", stdin="".join(_address(host, prefix)))


def _write_files(name: str, folder: Path, known: str) -> None:
    (folder / name / "cgroup").mkdir(parents=True)
    (folder / "root").mkdir(exist_ok=True)  # the home of ssh sessions, on all hosts the same
    everyone = Path("/etc/passwd").read_text().splitlines(keepends=True)
    others = [line for line in everyone if not line.startswith("root:")]
    files = {
        "hosts": f"127.0.0.1 localhost\n{known}",
        "passwd": "".join([f"root:x:0:0:root:{folder / 'root'}:/bin/sh\n", *others]),
        "shadow": SHADOW,
        "boot_id": f"{uuid.uuid4()}\n",
        "machine-id": f"{uuid.uuid4().hex}\n",
    }
    for file, text in files.items():
        (folder / name / file).write_text(text)


def _start(name: str, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    with (folder / "hold.log").open("w") as log:
        return subprocess.Popen(
            ["unshare", *APART, "--kill-child", "sh", str(HOLD), name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
            cwd="/",
            start_new_session=True,
        )


def _ready(name: str, address: str, holder: subprocess.Popen[str], folder: Path) -> Host:
    assert holder.stdout
    if holder.stdout.readline() != "ready\n":
        why = (folder / name / "hold.log").read_text().strip()
        raise RuntimeError(f"host {name} did not come up: {why}")
    return Host(name, address, holder, net_of(holder.pid))


def _address(host: Host, prefix: int) -> list[str]:
    return [f"addr add {host.address}/{prefix} brd + dev eth0\n", "link set eth0 up\n"]


def _children_in(namespace: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as file:
        if libc.setns(file.fileno(), NEW_PID):
            raise OSError(ctypes.get_errno(), "setns", str(namespace))
