"""HPE's PALS: `mpiexec` on Cray EX systems, usually inside a PBS job."""

from dataclasses import replace

from torchloom.launch.environments.world import Certain, Env, World, number, rank_world


class Pals(Certain):
    """`PALS_*` beside `PMI_*`. Slurm's own Cray plugin sets them too, and is asked instead."""

    name = "pals"

    def detect(self, env: Env) -> World | None:
        """Return the rank's world; which hosts there are is for the scheduler to say."""
        if env.get("PALS_RANKID") == env.get("SLURM_PROCID"):
            return None
        size = "PMI_SIZE" if "PMI_SIZE" in env else "PALS_SIZE"
        local = "PALS_LOCAL_SIZE" if "PALS_LOCAL_SIZE" in env else "PMI_LOCAL_SIZE"
        world = rank_world(self.name, env, "PALS_RANKID", size, "PALS_LOCAL_RANKID", local)
        return world and replace(world, node_rank=number(env, "PALS_NODEID"))
