"""The ways to bring ranks to hosts: who starts what there, and who says how many."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...harness.host_launches import LIMIT, LOOM, Launches

NODES = ("n1", "n2")


@dataclass(frozen=True)
class Way:
    """One way, over n1 and n2 with two ranks each."""

    name: str
    flags: tuple[str, ...] = ()
    allocation: bool = False

    def command(self, launches: Launches, *words: str | Path) -> tuple[str, list[str]]:
        """Return on which host to start what."""
        launch = [*LOOM, "launch", *self.flags]
        told = list(map(str, words))
        if self.allocation:
            options = [f"--nodelist={','.join(NODES)}", "--ntasks-per-node=2", "--nodes=2"]
            return "ctl", ["salloc", "--quiet", *options, *launch, *told]
        hosts = str(launches.hostfile(n1=2, n2=2))
        return "n1", [*launch, "--hostfile", hosts, *told]

    def run(
        self, launches: Launches, *words: str | Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        host, argv = self.command(launches, *words)
        return launches.cluster.run(host, argv, launches.variables(env), timeout=LIMIT)

    def start(
        self, launches: Launches, *words: str | Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        host, argv = self.command(launches, *words)
        return launches.start(host, *argv, env=env)

    def __str__(self) -> str:
        return self.name


SSH = Way("ssh")
SRUN = Way("srun", allocation=True)
SRUN_PER_RANK = Way("srun_per_rank", ("--per-rank",), allocation=True)
MPIRUN = Way("mpirun", ("--launcher", "mpirun"))
MPIRUN_PER_RANK = Way("mpirun_per_rank", ("--launcher", "mpirun", "--per-rank"))
MPIRUN_IN_SLURM = Way("mpirun_in_slurm", ("--launcher", "mpirun"), allocation=True)

WAYS = (SSH, SRUN, SRUN_PER_RANK, MPIRUN, MPIRUN_PER_RANK, MPIRUN_IN_SLURM)
