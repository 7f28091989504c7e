"""AWS Batch: a node of a multi-node parallel job."""

from torchloom.launch.environments.world import Certain, Env, World, number


class AwsBatch(Certain):
    """`AWS_BATCH_JOB_*`. Only the main node's address is told, and only to the others."""

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
        told = env.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
        return World(
            self.name,
            (self._own_host,) if count == 1 else (),
            job_id=job,
            node_rank=_rank(index, main),
            node_count=count,
            address=told or (self._own_host if index == main else None),
            on_every_host=True,
        )


def _rank(index: int, main: int) -> int:
    """Return the node's number when the main node counts first."""
    if index == main:
        return 0
    return index + 1 if index < main else index
