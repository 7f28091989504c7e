"""Record what real Slurm tasks and real MPI ranks find in their environment; run by hand, as root.

    apt-get install slurm-wlm munge openmpi-bin mpich
    python3 record.py

Three hosts as network namespaces run real slurmds; Open MPI and MPICH reach the same hosts. Each
task writes its environment down and prints its host and pid; the launcher's own label
(`srun -l`, `mpirun --tag-output`, `mpiexec -l`) says which rank printed that line. So `rank` and
`host` of a recording come from the launcher and the host, not from the variables under test.
Only processes and namespaces that were made here are ended.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = Path("/tmp/recording")
NODES = {"node01": ("loomrec1", "10.78.0.11", 4), "node02": ("loomrec2", "10.78.0.12", 4)}
NODES |= {"big1": ("loomrec3", "10.78.0.13", 8)}
CONTROLLER = ("ctl", "loomrec0", "10.78.0.1")
KEPT = re.compile(r"(SLURM|PMI|PMIX|OMPI|MPI|HYD|PALS|PRTE|MV2)[A-Z0-9_]*_[A-Z0-9_]*")
LABEL = re.compile(
    r"^(?:\[\d+,(\d+)\]<stdout>:|\[(\d+)\] | *(\d+): |\^@)?([\w.-]+) (\d+)$", re.MULTILINE
)
TASK = """
import json, os, socket
name = f"{socket.gethostname()}-{os.getpid()}"
with open(f"/tmp/recording/tasks/{name}.json", "w") as file:
    json.dump(dict(os.environ), file)
print(socket.gethostname(), os.getpid(), flush=True)
"""
SLURM = {
    "srun_block": "srun -l -N2 -w node01,node02 -n3 -m block python3 task.py",
    "srun_cyclic": "srun -l -N2 -w node01,node02 -n3 -m cyclic python3 task.py",
    "srun_two_a_node": "srun -l -N2 -w node01,node02 --ntasks-per-node=2 python3 task.py",
    "srun_plane": "srun -l -N2 -w node01,node02 -n7 -O -m plane=2 python3 task.py",
    "srun_uneven_nodes": "srun -l -N3 -n14 --exclusive python3 task.py",
    "srun_pmi2": "srun -l --mpi=pmi2 -N2 -w node01,node02 -n4 -m cyclic python3 task.py",
    "srun_heterogeneous": "srun -l -w node01 -n1 : -w node02 -n2 python3 task.py",
    "srun_pty": "script -qec 'srun -N2 -n3 --pty bash -c \"exec python3 task.py\"' /dev/null",
    "salloc": "salloc -N2 -w node01,node02 -n3 python3 task.py",
    "salloc_nodes_alone": "salloc -N2 -w node01,node02 python3 task.py",
    "salloc_heterogeneous": "salloc -w node01 -n1 : -w node02 -n2 python3 task.py",
    "salloc_tasks_per_node": "salloc -N3 --ntasks-per-node=2 python3 task.py",
    "salloc_then_srun_on_one_node": "salloc -N2 -w node01,node02 -n3 srun -l -N1 -n1 -w node02 "
    "python3 task.py",
    "salloc_then_mpirun": "salloc -N2 -w node01,node02 -n3 mpirun --allow-run-as-root --tag-output "
    "--mca btl self,tcp --map-by node python3 task.py",
    "salloc_then_hydra": "salloc -N2 -w node01,node02 -n3 mpiexec.hydra -l -n 3 python3 task.py",
    "sbatch": "sbatch -N2 --ntasks-per-node=2 -o tasks/out.txt -W --wrap 'python3 task.py'; "
    "cat tasks/out.txt",
    "sbatch_named_bash_then_srun": "sbatch -J bash -N2 -n3 -o tasks/out.txt -W "
    "--wrap 'srun -l python3 task.py'; cat tasks/out.txt",
}
MPI = {
    "mpirun_by_slot": "mpirun --allow-run-as-root --tag-output "
    "--mca plm_rsh_agent /tmp/recording/sh --hostfile slots --map-by slot -np 3 python3 task.py",
    "mpirun_by_node": "mpirun --allow-run-as-root --tag-output "
    "--mca plm_rsh_agent /tmp/recording/sh --hostfile slots --map-by node -np 3 python3 task.py",
    "hydra_two_a_node": "mpiexec.hydra -l -launcher ssh -launcher-exec /tmp/recording/sh "
    "-f hosts.txt -ppn 2 -n 3 python3 task.py",
    "hydra_round_robin": "mpiexec.hydra -l -launcher ssh -launcher-exec /tmp/recording/sh "
    "-f hosts.txt -ppn 1 -n 3 python3 task.py",
}


def main() -> None:
    """Make the hosts, run every case, write one file each, take all of it down again."""
    wanted = sys.argv[1:] or [*SLURM, *MPI]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, ROOT, ignore_errors=True)
        (ROOT / "tasks").mkdir(parents=True)
        write_files()
        stack.enter_context(network())
        stack.enter_context(slurm())
        for name in wanted:
            record(name, (SLURM | MPI)[name])


def record(name: str, command: str) -> None:
    """Run one case on the controller and write what its tasks found."""
    for old in (ROOT / "tasks").iterdir():
        old.unlink()
    done = subprocess.run(
        [*entered(*CONTROLLER[:2]), f"hostname ctl; cd {ROOT}; {command}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "SLURM_CONF": str(ROOT / "slurm.conf"), "HOME": str(ROOT)},
    )
    seen = []
    for match in LABEL.finditer(done.stdout.replace("\r", "").replace("\0", "")):
        label = next((word for word in match.groups()[:3] if word is not None), None)
        env = json.loads((ROOT / "tasks" / f"{match[4]}-{match[5]}.json").read_text())
        kept = {key: env[key] for key in sorted(env) if KEPT.fullmatch(key)}
        rank = None if label is None else int(label)
        seen.append({"rank": rank, "host": match[4], "env": kept})
    seen.sort(key=lambda task: (task["rank"] or 0, task["host"]))
    version = "mpirun" if "mpirun" in command else "mpiexec.hydra" if "hydra" in name else "sinfo"
    found = {"source": versions()[version], "command": command, "tasks": seen}
    (HERE / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{name}: {len(seen)} tasks", [(task["rank"], task["host"]) for task in seen])
    if not seen:
        print(done.stdout, done.stderr)


def versions() -> dict[str, str]:
    """Return what to call each launcher in a recording."""
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(ROOT / "slurm.conf")}
    asked = {tool: [tool, "--version"] for tool in ("mpirun", "mpiexec.hydra", "sinfo")}
    said = {
        tool: subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout
        for tool, words in asked.items()
    }
    hydra = re.search(r"Version:\s*(\S+)", said["mpiexec.hydra"])
    return {
        "mpirun": said["mpirun"].splitlines()[0],
        "mpiexec.hydra": f"MPICH {hydra[1] if hydra else ''} (hydra)",
        "sinfo": said["sinfo"].strip(),
    }


def write_files() -> None:
    """Write the task, the host lists, the way to reach a host and Slurm's configuration."""
    (ROOT / "task.py").write_text(TASK)
    (ROOT / "slots").write_text("node01 slots=2\nnode02 slots=2\n")
    (ROOT / "hosts.txt").write_text("node01\nnode02\n")
    addresses = {CONTROLLER[0]: CONTROLLER[2]} | {node: NODES[node][1] for node in NODES}
    lines = [f"{address} {host}" for host, address in addresses.items()]
    (ROOT / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    cases = "\n".join(f"{node}) space={NODES[node][0]};;" for node in NODES)
    (ROOT / "sh").write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        f"node=$1; shift\ncase $node in\n{cases}\nesac\n"
        "exec nsenter --net=/run/netns/$space unshare --uts --mount sh -c "
        f'\'hostname $0; mount --bind {ROOT}/hosts /etc/hosts; eval "$@"\' "$node" "$@"\n'
    )
    (ROOT / "sh").chmod(0o755)
    nodes = [
        f"NodeName={node} NodeAddr={address} CPUs={cpus} RealMemory=100 State=UNKNOWN"
        for node, (_, address, cpus) in NODES.items()
    ]
    settings = [
        "ClusterName=recording",
        f"SlurmctldHost=ctl({CONTROLLER[2]})",
        f"StateSaveLocation={ROOT}/state",
        f"SlurmdSpoolDir={ROOT}/%n",
        f"SlurmctldPidFile={ROOT}/slurmctld.pid",
        f"SlurmdPidFile={ROOT}/slurmd-%n.pid",
        f"AuthInfo=socket={ROOT}/munge.socket",
        "SlurmUser=root",
        "SlurmdUser=root",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "SchedulerParameters=bf_interval=1,sched_interval=1",
        f"SlurmctldLogFile={ROOT}/slurmctld.log",
        f"SlurmdLogFile={ROOT}/slurmd-%n.log",
    ]
    partition = "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=NO"
    (ROOT / "slurm.conf").write_text("\n".join([*settings, *nodes, partition]) + "\n")
    for folder in ("state", *NODES):
        (ROOT / folder).mkdir()


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Make a namespace for the controller, with a bridge, and one for each node."""
    _, hub, address = CONTROLLER
    spaces = [hub, *(space for space, _, _ in NODES.values())]
    try:
        for space in spaces:
            sh(f"ip netns add {space}; ip -n {space} link set lo up")
        sh(f"ip -n {hub} link add br0 type bridge; ip -n {hub} addr add {address}/24 dev br0")
        sh(f"ip -n {hub} link set br0 up")
        for number, (space, own, _) in enumerate(NODES.values()):
            sh(f"ip link add lr{number} netns {hub} type veth peer name eth0 netns {space}")
            sh(f"ip -n {hub} link set lr{number} master br0 up")
            sh(f"ip -n {space} addr add {own}/24 dev eth0; ip -n {space} link set eth0 up")
        yield
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False)


@contextlib.contextmanager
def slurm() -> Iterator[None]:
    """Run munged, slurmctld and a slurmd a node in the foreground until the cases are done."""
    key = ROOT / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = f"--socket={ROOT}/munge.socket --key-file={key} --pid-file={ROOT}/munged.pid"
    more = f"--log-file={ROOT}/munged.log --seed-file={ROOT}/munged.seed"
    conf = ROOT / "slurm.conf"
    daemons = [
        subprocess.Popen(
            shlex.split(f"munged --foreground --force {files} {more}"), stderr=subprocess.DEVNULL
        )
    ]
    try:
        wait_for(lambda: (ROOT / "munge.socket").exists())
        (ROOT / "munge.socket").chmod(0o777)
        run = f"hostname ctl; exec slurmctld -D -f {conf}"
        daemons.append(
            subprocess.Popen([*entered(*CONTROLLER[:2]), run], stderr=subprocess.DEVNULL)
        )
        for node, (space, _, _) in NODES.items():
            run = f"hostname {node}; mount -t tmpfs t /dev/shm; exec slurmd -D -N {node} -f {conf}"
            daemons.append(
                subprocess.Popen([*entered(node, space), run], stderr=subprocess.DEVNULL)
            )
        asked = [*entered(*CONTROLLER[:2]), f"SLURM_CONF={conf} sinfo -h -o %T"]
        wait_for(lambda: subprocess.check_output(asked, text=True).split() == ["idle"])
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=20)


def entered(host: str, space: str) -> list[str]:
    """Return the words that run a shell line on a host."""
    line = f'mount --bind {ROOT}/hosts /etc/hosts; hostname {host}; eval "$0"'
    return [
        *("nsenter", f"--net=/run/netns/{space}"),
        *("unshare", "--uts", "--mount", "sh", "-c", line),
    ]


def wait_for(ready: Callable[[], bool], seconds: float = 30) -> None:
    """Ask until it is so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.CalledProcessError):
            if ready():
                return
        time.sleep(0.2)
    raise TimeoutError("the cluster did not come up")


def sh(line: str) -> None:
    subprocess.run(["sh", "-ec", line], check=True)


if __name__ == "__main__":
    main()
