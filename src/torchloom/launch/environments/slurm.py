"""Slurm: a task of `srun`, or the allocation of `sbatch`, `salloc` and `srun --pty`."""

from torchloom.launch.environments.world import Env, World, number
from torchloom.launch.nodelist import expand, expand_counts

PSEUDO_STEPS = 0xFFFF_FFF0  # batch, extern, interactive: numbers above are no steps of ranks


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
        return f"SLURM_JOB_ID={job} has no SLURM_JOB_NODELIST beside it: not taken for a job"

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
