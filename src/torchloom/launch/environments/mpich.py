"""MPICH, Intel MPI and others whose `mpiexec` is Hydra: they speak PMI."""

from torchloom.launch.environments.world import Certain, Env, World, rank_world


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


_CRAY = ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
