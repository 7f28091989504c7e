"""Kubernetes: a pod of an indexed Job or JobSet, or of Kubeflow's PyTorchJob."""

from torchloom.launch.environments.world import Certain, Env, World, number

_UNCOUNTED = "an indexed Job does not tell its pods their number: set NNODES or pass --nnodes"


class SageMaker:
    """`SM_HOSTS` and `SM_CURRENT_HOST`."""

    name = "sagemaker"

    def detect(self, env: Env) -> World | None:
        """Return the host's place; SageMaker started this container on every host."""
        hosts = _listed_hosts(env)
        current = env.get("SM_CURRENT_HOST")
        if current not in hosts:
            return None
        gpus = number(env, "SM_NUM_GPUS")
        return World(
            self.name,
            hosts,
            (gpus,) * len(hosts) if gpus else (),
            env.get("TRAINING_JOB_NAME") or env.get("SM_TRAINING_JOB_NAME"),
            node_rank=hosts.index(current),
            gpus_per_host=gpus or None,
            on_every_host=True,
        )

    def doubt(self, env: Env) -> str:
        """Say when SM_HOSTS is there but does not name this host."""
        if "SM_HOSTS" not in env or self.detect(env):
            return ""
        return "SM_HOSTS does not list SM_CURRENT_HOST: not treated as a SageMaker job"


def _listed_hosts(env: Env) -> tuple[str, ...]:
    import json

    try:
        hosts = json.loads(env.get("SM_HOSTS", "[]"))
    except ValueError:
        return ()
    return tuple(sorted(map(str, hosts), key=_host_order)) if isinstance(hosts, list) else ()


def _host_order(host: str) -> tuple[str, int]:
    """Order `algo-2` before `algo-10`: every host must find the same first one."""
    name, _, index = host.rpartition("-")
    return (name, int(index)) if index.isascii() and index.isdigit() else (host, 0)


class AwsBatch(Certain):
    """`AWS_BATCH_JOB_*`. Only the main node's address is given, and only to the others."""

    name = "aws_batch"

    def __init__(self, own_host: str) -> None:
        self._own_host = own_host

    def detect(self, env: Env) -> World | None:
        """Return the node's place; Batch started this container on every node."""
        job = env.get("AWS_BATCH_JOB_ID")
        if not job:
            return None
        count = number(env, "AWS_BATCH_JOB_NUM_NODES") or 1
        index = number(env, "AWS_BATCH_JOB_NODE_INDEX") or 0
        main = number(env, "AWS_BATCH_JOB_MAIN_NODE_INDEX") or 0
        given = env.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
        return World(
            self.name,
            (self._own_host,) if count == 1 else (),
            job_id=job,
            node_rank=_node_rank(index, main),
            node_count=count,
            address=given or (self._own_host if index == main else None),
            on_every_host=True,
        )


def _node_rank(index: int, main: int) -> int:
    """Return the node's number when the main node counts first."""
    if index == main:
        return 0
    return index + 1 if index < main else index


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
            _pods(address or "", job, count or 0),
            job_id=job,
            node_rank=index,
            node_count=count,
            gpus_per_host=number(env, "PET_NPROC_PER_NODE"),
            address=address,
            port=number(env, "PET_MASTER_PORT", "MASTER_PORT"),
            on_every_host=True,
            notes=() if count else (_UNCOUNTED,),
        )


def _pods(head: str, job: str | None, count: int) -> tuple[str, ...]:
    """Return every pod's name made from the first's, `JOB-0[.SERVICE]`, if we are of that job."""
    pod, dot, service = head.partition(".")
    if job is None or pod != f"{job}-0":
        return ()
    return tuple(f"{job}-{each}{dot}{service}" for each in range(count))


def _job(name: str, index: int) -> str | None:
    job, dash, own = name.partition(".")[0].rpartition("-")
    return job if dash and own == str(index) else None
