"""Open MPI's `mpirun`, and MVAPICH2's, which counts in the same way."""

from torchloom.launch.environments.world import Certain, Env, World, rank_world


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
