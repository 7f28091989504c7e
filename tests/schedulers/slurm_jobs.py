"""`loom run -s slurm` on the hosts of a test, which are a real Slurm's."""

from .engine_jobs import Jobs


class SlurmJobs(Jobs):
    """What one test submits, from the login node `ctl`."""

    engine = "slurm"

    def slurm(self, *words: str) -> str:
        return self.cluster.run("ctl", words).stdout
