"""Slurm: a task of `srun`, or the allocation of `sbatch`, `salloc` and `srun --pty`."""

from collections import Counter
from pathlib import Path

from torchloom.launch.environments.world import Certain, Env, World, number, rank_world
from torchloom.launch.hosts.host_lists import (
    HostSlots,
    Read,
    expand,
    expand_counts,
    index_of,
    parse_hosts,
)

AUX = Path("/var/spool/pbs/aux")  # where PBS keeps nodefiles; some sites do not export the variable
PSEUDO_STEPS = 0xFFFF_FFF0  # batch, extern, interactive: numbers above are no steps of ranks


class Jsrun(Certain):
    """`JSM_NAMESPACE_*`: a rank of IBM's job step manager."""

    name = "jsrun"

    def detect(self, env: Env) -> World | None:
        """Return the rank's world; the hosts are LSF's to say."""
        names = [f"JSM_NAMESPACE_{word}" for word in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        return rank_world(self.name, env, *names)


class Lsf:
    """`LSB_*`: hosts from the rank file or the host file, else from the variables."""

    name = "lsf"

    def __init__(self, read: Read) -> None:
        self._read = read

    def detect(self, env: Env) -> World | None:
        """Return the allocation, without the launch node that runs the script alone."""
        job = env.get("LSB_JOBID")
        counts = self._counts(env)
        if not job or not counts:
            return None
        launch = _launch_node(counts)
        notes = (f"{launch} runs the batch script only: no ranks there",) if launch else ()
        kept = {host: slots for host, slots in counts.items() if host != launch}
        return World(self.name, tuple(kept), tuple(kept.values()), job, notes=notes)

    def doubt(self, env: Env) -> str:
        """Say when there is a job's number but no hosts."""
        job = env.get("LSB_JOBID")
        if not job or self._counts(env):
            return ""
        return f"LSB_JOBID={job} is set without hosts: not treated as a job"

    def _counts(self, env: Env) -> dict[str, int]:
        listed = self._listed(env, "LSB_DJOB_RANKFILE") or self._listed(env, "LSB_DJOB_HOSTFILE")
        words = env.get("LSB_MCPU_HOSTS", "").split()
        if not listed and len(words) >= 2 and all(word.isdigit() for word in words[1::2]):
            return {host: int(slots) for host, slots in zip(words[::2], words[1::2], strict=False)}
        return dict(Counter(listed or env.get("LSB_HOSTS", "").split()))

    def _listed(self, env: Env, name: str) -> list[str]:
        try:
            return self._read(Path(env[name])).split()
        except (KeyError, OSError):  # the other places say the same
            return []


def _launch_node(counts: dict[str, int]) -> str:
    """Return the first host where it has one slot and every other has the same, larger number."""
    first, *others = counts
    alike = {counts[host] for host in others}
    return first if counts[first] == 1 and len(alike) == 1 and alike != {1} else ""


class Pbs:
    """`PBS_JOBID` is believed only with a nodefile that names this host: it outlives its job."""

    name = "pbs"

    def __init__(self, read: Read, own_host: str) -> None:
        self._read = read
        self._own_host = own_host

    def detect(self, env: Env) -> World | None:
        """Return the allocation, or nothing for a variable left over from another one."""
        job = env.get("PBS_JOBID")
        hosts = self._hosts(env)
        if not job or not hosts or not self._is_here(hosts):
            return None
        return World(
            self.name,
            tuple(each.host for each in hosts),
            tuple(each.slots or 1 for each in hosts),
            job.partition(".")[0],
            cores=number(env, "NCPUS") or 0,
        )

    def doubt(self, env: Env) -> str:
        """Say why a PBS_JOBID was not believed."""
        job = env.get("PBS_JOBID")
        if not job:
            return ""
        hosts = self._hosts(env)
        if not hosts:
            path = env.get("PBS_NODEFILE") or AUX / job
            return f"PBS_JOBID={job} is stale: its nodefile {path} does not exist"
        if not self._is_here(hosts):
            return f"PBS_JOBID={job} is stale: {self._own_host} is not in its nodefile"
        return ""

    def _hosts(self, env: Env) -> tuple[HostSlots, ...]:
        path = env.get("PBS_NODEFILE") or AUX / env.get("PBS_JOBID", "")
        try:
            return parse_hosts(self._read(Path(path)))
        except OSError:  # no file, no job: `doubt` says so
            return ()

    def _is_here(self, hosts: tuple[HostSlots, ...]) -> bool:
        return index_of(self._own_host, [each.host for each in hosts]) is not None


class Slurm:
    """`SLURM_*`. A rank is a task of a real step without a terminal; all else is an allocation."""

    name = "slurm"

    def detect(self, env: Env) -> World | None:
        """Return the step's world for a task, the job's world for a shell or batch script."""
        job = _job(env)
        if job is None:
            return None
        return self._task(env, job) if _is_task(env) else self._allocation(env, job)

    def doubt(self, env: Env) -> str:
        """Say when there is a job's number but no hosts."""
        job = _job(env)
        if job is None or self.detect(env):
            return ""
        return f"SLURM_JOB_ID={job} is set without SLURM_JOB_NODELIST: not treated as a job"

    def _task(self, env: Env, job: str) -> World | None:
        hosts = expand(env.get("SLURM_STEP_NODELIST") or _nodelist(env))
        node = number(env, "SLURM_NODEID")
        counts = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", "")
        slots = _fit(counts, hosts)
        here = slots[node] if node is not None and node < len(slots) else None
        return World(
            self.name,
            hosts,
            slots,
            job,
            rank=number(env, "SLURM_PROCID"),
            local_rank=number(env, "SLURM_LOCALID"),
            node_rank=node,
            world_size=number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
            local_size=here,
            gpus_per_host=_gpus(env),
        )

    def _allocation(self, env: Env, job: str) -> World | None:
        groups = _groups(env)
        hosts = tuple(host for group in groups for host in expand(_nodelist(env, group)))
        if not hosts:
            return None
        counts = [env.get(f"SLURM_TASKS_PER_NODE{group}", "") for group in groups]
        return World(
            self.name,
            hosts,
            _fit(",".join(counts), hosts),
            job,
            gpus_per_host=_gpus(env),
            inside_step=_step(env) is not None,
            groups=len(groups),
        )


def _job(env: Env) -> str | None:
    return env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID") or None


def _step(env: Env) -> int | None:
    return number(env, "SLURM_STEP_ID", "SLURM_STEPID")


def _is_task(env: Env) -> bool:
    """A batch script has SLURM_PROCID too, but no step; an interactive shell has a terminal."""
    step = _step(env)
    if step is None or step >= PSEUDO_STEPS or number(env, "SLURM_PROCID") is None:
        return False
    return "SLURM_PTY_PORT" not in env


def _groups(env: Env) -> list[str]:
    """Return the endings of a heterogeneous job's variables; one empty ending for other jobs."""
    size = number(env, "SLURM_HET_SIZE") or 0
    known = [f"_HET_GROUP_{index}" for index in range(size)]
    return known if size and all(_nodelist(env, group) for group in known) else [""]


def _nodelist(env: Env, group: str = "") -> str:
    return env.get(f"SLURM_JOB_NODELIST{group}") or env.get(f"SLURM_NODELIST{group}") or ""


def _gpus(env: Env) -> int | None:
    """Return the devices a node has; `SLURM_GPUS_PER_NODE` may be written `a100:4`."""
    asked = env.get("SLURM_GPUS_PER_NODE", "").rpartition(":")[2]
    return number(env, "SLURM_GPUS_ON_NODE") or number({"asked": asked}, "asked")


def _fit(counts: str, hosts: tuple[str, ...]) -> tuple[int, ...]:
    """Return the counts if there is one a host; else nothing is known."""
    slots = expand_counts(counts)
    return slots if len(slots) == len(hosts) else ()
