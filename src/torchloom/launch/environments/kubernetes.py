"""Kubernetes: a pod of an indexed Job or JobSet, or of Kubeflow's PyTorchJob."""

from torchloom.launch.environments.world import Certain, Env, World, number


class Kubernetes(Certain):
    """`JOB_COMPLETION_INDEX`, or Kubeflow's `PET_NODE_RANK`: one pod a node, all started."""

    name = "kubernetes"

    def detect(self, env: Env) -> World | None:
        """Return the pod's place; an indexed Job does not say how many pods there are."""
        index = number(env, "JOB_COMPLETION_INDEX")
        if index is None and "KUBERNETES_SERVICE_HOST" in env:
            index = number(env, "PET_NODE_RANK")
        if index is None:
            return None
        count = number(env, "PET_NNODES", "NNODES", "NUM_NODES")
        address = env.get("PET_MASTER_ADDR") or env.get("MASTER_ADDR")
        job = _job(env.get("HOSTNAME", ""), index)
        return World(
            self.name,
            _hosts(address or "", job, count or 0),
            job_id=job,
            node_rank=index,
            node_count=count,
            gpus_per_host=number(env, "PET_NPROC_PER_NODE"),
            address=address,
            port=number(env, "PET_MASTER_PORT", "MASTER_PORT"),
            on_every_host=True,
            notes=() if count else (_UNCOUNTED,),
        )


_UNCOUNTED = "an indexed Job does not tell its pods how many they are: set NNODES or pass --nnodes"


def _hosts(head: str, job: str | None, count: int) -> tuple[str, ...]:
    """Return every pod's name made from the first's, `JOB-0[.SERVICE]`, if we are of that job."""
    pod, dot, service = head.partition(".")
    if job is None or pod != f"{job}-0":
        return ()
    return tuple(f"{job}-{each}{dot}{service}" for each in range(count))


def _job(name: str, index: int) -> str | None:
    job, dash, own = name.partition(".")[0].rpartition("-")
    return job if dash and own == str(index) else None
