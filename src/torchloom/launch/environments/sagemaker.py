"""SageMaker: a host of a training job."""

from torchloom.launch.environments.world import Env, World, number


class SageMaker:
    """`SM_HOSTS` and `SM_CURRENT_HOST`."""

    name = "sagemaker"

    def detect(self, env: Env) -> World | None:
        """Return the host's place; SageMaker started this container on every host."""
        hosts = _hosts(env)
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
        return "SM_HOSTS does not list SM_CURRENT_HOST: not taken for a SageMaker job"


def _hosts(env: Env) -> tuple[str, ...]:
    import json

    try:
        hosts = json.loads(env.get("SM_HOSTS", "[]"))
    except ValueError:
        return ()
    return tuple(sorted(map(str, hosts), key=_order)) if isinstance(hosts, list) else ()


def _order(host: str) -> tuple[str, int]:
    """Order `algo-2` before `algo-10`: every host must find the same first one."""
    name, _, index = host.rpartition("-")
    return (name, int(index)) if index.isascii() and index.isdigit() else (host, 0)
