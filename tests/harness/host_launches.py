"""`loom launch` on the hosts of a test: start it, see what it did where, and what it left."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .home import until

LOOM = (sys.executable, "-m", "torchloom")
LIMIT = 90.0  # seconds; a launch that takes longer is stuck
RUNTIME = "/run/user/0"  # every host has its own
SLURM = (6817, 6818)  # ports of its daemons

# Every rank writes down what it is and where, before it does what the test asks for.
REPORT = """
import json, os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
         "MASTER_PORT", "LOOM_JOB", "TORCHELASTIC_RESTART_COUNT")
told = {name: os.environ.get(name) for name in names}
told["host"], told["pid"], told["cwd"] = socket.gethostname(), os.getpid(), os.getcwd()
told["argv"], told["env"] = sys.argv[1:], dict(os.environ)
with open(os.environ["REPORTS"] + "/" + told["RANK"], "a") as report:
    report.write(json.dumps(told) + "\\n")
"""
# It says that it lives, then stays until it is told to end.
STAY = """
import signal
print("up", flush=True)
while True:
    signal.pause()
"""


@dataclass
class Launches:
    """What is launched in one test, on whatever host."""

    cluster: Cluster
    home: Path
    folder: Path
    runtime: str = RUNTIME
    killed: set[str] = field(default_factory=set)  # hosts on which nobody could clear up

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def script(self, text: str, name: str = "train.py") -> Path:
        """Write the program of the ranks; it reports before anything else."""
        self.reports.mkdir(exist_ok=True)
        path = Path(name).absolute()
        path.write_text(REPORT + text)
        return path

    def hostfile(self, **slots: int) -> Path:
        path = self.folder / "hosts"
        path.write_text("".join(f"{host} slots={count}\n" for host, count in slots.items()))
        return path

    def variables(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"XDG_RUNTIME_DIR": self.runtime, "REPORTS": str(self.reports)}
        return own | dict(env or {})

    def start(
        self, host: str, *words: str | Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Start a command on a host and come back at once."""
        return self.cluster.popen(host, words, self.variables(env))

    def launch(
        self, host: str, *words: str | Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Start `loom launch` on a host and come back at once."""
        return self.start(host, *LOOM, "launch", *words, env=env)

    def run(
        self, host: str, *words: str | Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run `loom launch` on a host to its end."""
        argv = [*LOOM, "launch", *words]
        return self.cluster.run(host, argv, self.variables(env), timeout=LIMIT)

    def salloc(
        self, nodes: int, *words: str | Path, options: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Run `loom launch` in an allocation of so many nodes."""
        argv = [*LOOM, "launch", *words]
        return self.cluster.salloc(nodes, argv, options, env=self.variables(), timeout=LIMIT)

    # What is seen of it, from outside.

    def told(self) -> dict[int, dict[str, Any]]:
        """Return what each rank wrote down in its latest life."""
        return {rank: lives[-1] for rank, lives in self.lives().items()}

    def lives(self) -> dict[int, list[dict[str, Any]]]:
        found = {}
        for path in self.reports.iterdir() if self.reports.is_dir() else ():
            lines = path.read_text().splitlines(keepends=True)
            found[int(path.name)] = [json.loads(line) for line in lines if line.endswith("\n")]
        return dict(sorted(found.items()))

    def until_up(self, ranks: int, lives: int = 1) -> None:
        """Come back when so many ranks have reported so many lives."""
        until(lambda: [len(told) >= lives for told in self.lives().values()].count(True) >= ranks)

    def places(self) -> dict[int, tuple[str, int]]:
        return {rank: (one["host"], int(one["LOCAL_RANK"])) for rank, one in self.told().items()}

    @property
    def app_id(self) -> str:
        """The one run there is."""
        (name,) = [path.name for path in self._runs() if not path.name.startswith(".")]
        return name

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self.home / "runs" / self.app_id / "status.json").read_text()
        )
        return found

    def events(self) -> list[dict[str, Any]]:
        text = (self.home / "runs" / self.app_id / "events.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def log(self, replica: int, local_rank: int, name: str = "stdout.log") -> str:
        logs = self.home / "runs" / self.app_id / "logs"
        paths = list(logs.glob(f"*/{replica}/{local_rank}/{name}"))
        assert len(paths) <= 1
        return paths[0].read_text() if paths else ""

    def processes(self, host: str) -> dict[int, str]:
        """Return what runs on a host beside its daemons, by the test's numbers."""
        return {pid: words for pid in self.cluster.pids(host) if (words := command_line(pid))}

    def everything(self, host: str) -> list[str]:
        """Return the command lines of all that runs on a host, carriers' helpers included."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [command_line(pid) for pid in pids if self.cluster.host_of(pid) == host]

    def tokens(self) -> set[str]:
        """Return what agents and launch process know each other by."""
        pids = [pid for host in self.cluster.addresses for pid in self.cluster.pids(host)]
        return {environment_of(pid).get("LOOM_LAUNCH_TOKEN", "") for pid in pids} - {""}

    def written(self) -> list[Path]:
        """Return the files of all runs."""
        return [path for path in self.home.rglob("*") if path.is_file()]

    def ranks_on(self, host: str) -> set[int]:
        """Return the ranks on a host; their store is none."""
        found = self.processes(host)
        return {pid for pid in found if "train.py" in found[pid] and _is_rank(pid, self.app_id)}

    def ours(self, host: str) -> dict[int, str]:
        """Return all that belongs to the job on a host: ranks, agents, carriers."""
        app = self.app_id
        pids = {pid: environment_of(pid) for pid in self.cluster.pids(host)}
        names = ("LOOM_JOB", "LOOM_AGENT_OF")
        return {pid: command_line(pid) for pid, env in pids.items() if app in map(env.get, names)}

    def tree(self, host: str) -> dict[str, int]:
        """Return guard, agent and keeper of a node, known by who is whose parent."""
        return self._named(host, b"torchloom.launch.agent.node")

    def launch_process(self) -> int:
        """Return the test's number of the launch process, as the record names it."""
        launcher = self.record()["launcher"]
        pid = self.number_of(launcher["host"], launcher["pid"])
        assert pid
        return pid

    def number_of(self, host: str, pid: int) -> int | None:
        """Return the test's number of a process that has this one on its host."""
        for mine in self.cluster.pids(host):
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{mine}/status").read_text().splitlines()
                numbers = next(line.split() for line in lines if line.startswith("NSpid:"))
                if int(numbers[-1]) == pid:
                    return mine
        return None

    def _named(self, host: str, module: bytes) -> dict[str, int]:
        """What an agent is about to execute something in looks like one: its parent is no guard."""
        ours = {pid for pid in self.cluster.pids(host) if module in _cmdline(pid)}
        parents = {pid: parent_of(pid) for pid in ours}
        found = {}
        for pid in sorted(ours):
            if parents[pid] not in ours:
                found["guard"] = pid
            elif _leads_session(pid):
                found["keeper"] = pid
            elif parents[parents[pid]] not in ours:
                found["agent"] = pid
        return found

    def kill(self, host: str, daemons: bool = True) -> None:
        """Kill all that runs on a host at one moment, so that nothing there sees another die."""
        self.killed.add(host)
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.cluster.pids(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
        if daemons:
            self.cluster.kill_host(host)

    def end_zygotes(self) -> None:
        """End what stays warm between runs, on purpose."""
        for host in self.cluster.addresses:
            for pid, words in self.processes(host).items():
                if "torchloom.worker.process.zygote" in words:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        self.forget()

    def forget(self) -> None:
        """Leave nothing of a host's memory to the next test."""
        for host in self.cluster.addresses:
            words = f"rm -rf /dev/shm/loom-* {self.runtime}/torchloom"
            self.cluster.run(host, ["sh", "-c", words])

    def left(self) -> dict[str, list[str]]:
        """Return what there is on each host that was not there before the test."""
        found = {}
        for host in self.cluster.addresses:
            running = [f"{pid} {words}" for pid, words in self.processes(host).items()]
            found[host] = running + ([] if running or host in self.killed else self._files(host))
        return {host: things for host, things in found.items() if things}

    def nothing_left(self, timeout: float = 15.0) -> None:
        """Fail when a process, a file of shared memory, a socket or a port is still there."""
        seen: dict[str, list[str]] = {}

        def gone() -> bool:
            seen.clear()
            seen.update(self.left())
            return not seen

        try:
            until(gone, timeout)
        except AssertionError:
            raise AssertionError(f"left behind: {json.dumps(seen, indent=1)}") from None

    def _files(self, host: str) -> list[str]:
        look = f"ls -d /dev/shm/* {self.runtime}/torchloom/*; ss -Hltnp 'sport != :22'"
        said = self.cluster.run(host, ["sh", "-c", f"{look} 2>/dev/null"]).stdout
        lines = [line for line in said.splitlines() if not _may_stay(line)]
        return [line for line in lines if not self._is_of_a_daemon(host, line)]

    def _is_of_a_daemon(self, host: str, line: str) -> bool:
        """Tell whether a port is a batch system's, which another test of the run has started."""
        pids = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        return bool(pids) and not pids & self.cluster.pids(host)

    def _runs(self) -> list[Path]:
        runs = self.home / "runs"
        return list(runs.iterdir()) if runs.is_dir() else []


def end(process: "subprocess.Popen[str]", signum: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signum)


def command_line(pid: int) -> str:
    return _cmdline(pid).replace(b"\0", b" ").decode(errors="replace").strip()


def environment_of(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        parts = (os.fsdecode(item).partition("=") for item in items)
        return {name: value for name, _, value in parts}
    return {}


def _cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _is_rank(pid: int, app_id: str) -> bool:
    return environment_of(pid).get("LOOM_JOB") == app_id


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def state_of(pid: int) -> str:
    """Return the kernel's letter for what a process does; X for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def _may_stay(line: str) -> bool:
    """Slurm's daemons listen where they always do; what is remembered of jobs is no job's, nor is
    the folder of a plane that is down."""
    if line.endswith(("/jobs-elsewhere.json", "/claims")) or "/torchloom/plane-" in line:
        return True
    return any(f":{port} " in line for port in SLURM)
