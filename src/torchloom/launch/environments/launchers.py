"""torchrun, and every launcher that keeps its contract."""

from dataclasses import replace

from torchloom.launch.environments.world import Certain, Env, World, number, rank_world

NOTE = (
    "no scheduler and no launcher found: the ranks run on this host; "
    "-n N or --ppn P sets how many, --hostfile FILE names other hosts"
)
_CRAY = ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")


class Plain(Certain):
    """The null object: always there."""

    name = "plain"

    def __init__(self, own_host: str) -> None:
        self._own_host = own_host

    def detect(self, env: Env) -> World:
        """Return this host, with the flags that change it."""
        return World(self.name, (self._own_host,), notes=(NOTE,))


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


class OpenMpi(Certain):
    """`OMPI_COMM_WORLD_*`. Its `NODE_RANK` is a rank on the node, not the node's number."""

    name = "openmpi"
    prefix = "OMPI_COMM_WORLD_"

    def detect(self, env: Env) -> World | None:
        """Return the rank's world; which hosts there are is for a scheduler to say."""
        names = [f"{self.prefix}{word}" for word in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        return rank_world(self.name, env, *names)


class Mvapich(OpenMpi):
    """`MV2_COMM_WORLD_*`."""

    name = "mvapich"
    prefix = "MV2_COMM_WORLD_"


class Mpich(Certain):
    """`PMI_RANK` with Hydra's local numbers; `srun --mpi=pmi2` gives no local ones."""

    name = "mpich"

    def detect(self, env: Env) -> World | None:
        """Return the rank's world; which hosts there are is for a scheduler to say."""
        hydra = "MPI_LOCALRANKID" in env
        if not hydra and "SLURM_PROCID" in env:
            return None
        local = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS") if hydra else _CRAY
        return rank_world(self.name, env, "PMI_RANK", "PMI_SIZE", *local)


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
