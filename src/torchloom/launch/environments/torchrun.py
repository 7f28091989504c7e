"""torchrun, and every launcher that keeps its contract."""

from dataclasses import replace

from torchloom.launch.environments.world import Certain, Env, World, number, rank_world


class Torchrun(Certain):
    """`RANK`, `WORLD_SIZE` and `LOCAL_RANK` together: alone, the first two may count pods."""

    name = "torchrun"

    def detect(self, env: Env) -> World | None:
        """Return the rank's world."""
        if number(env, "LOCAL_RANK") is None:
            return None
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        world = rank_world(self.name, env, *names)
        return world and replace(
            world,
            job_id=env.get("TORCHELASTIC_RUN_ID"),
            node_rank=number(env, "GROUP_RANK"),
            node_count=number(env, "GROUP_WORLD_SIZE"),
            address=env.get("MASTER_ADDR"),
            port=number(env, "MASTER_PORT"),
        )
