"""Hosts with what a cluster has beside: ssh between them, Slurm over them, Open MPI."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from . import slurm, ssh
from .batch.system import BatchSystem
from .hosts import CTL, NETWORK, PREFIX, SYSTEM_PATH, Hosts
from .leftovers import MARK
from .lsf import Lsf
from .pbs import Pbs

OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_tcp_if_include": f"{NETWORK}.0/{PREFIX}",
    "OMPI_MCA_oob_tcp_if_include": f"{NETWORK}.0/{PREFIX}",
    "OMPI_MCA_orte_tmpdir_base": "/run",  # each host's own: two clusters have hosts of one name
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}

BRISK = {"host_patience": 1.0, "beat_timeout": 4.0}  # seconds; batch systems are set to minutes
Batch = TypeVar("Batch", bound=BatchSystem)


class Cluster(Hosts):
    """Hosts that a launcher finds its way over; ssh and Slurm start when first asked for."""

    def __init__(self, count: int = 4) -> None:
        super().__init__(count)
        self._ssh_config: Path | None = None
        self._slurm: slurm.Slurm | None = None
        self._batch: dict[type[BatchSystem], BatchSystem] = {}
        self.env |= OPEN_MPI

    def with_ssh(self) -> Self:
        """Start sshd on n1, n2, ... unless they run; then a plain `ssh n2` works on every host."""
        if not self._ssh_config:
            env = {MARK: self.env[MARK], "PATH": f"{self.bin}:{SYSTEM_PATH}"}
            self._ssh_config = ssh.start(self, self.folder / "ssh", env)
            ssh.wrap(self.bin, self._ssh_config)
        return self

    @property
    def ssh_config(self) -> Path:
        """The client's configuration, for `ssh -F`; the hosts' plain `ssh` has it already."""
        assert self._ssh_config, "call with_ssh() or ask for the fixture ssh_cluster"
        return self._ssh_config

    def with_slurm(self) -> Self:
        """Start Slurm over n1, n2, ... unless it runs; come back when all of them are idle."""
        if not self._slurm:
            new = slurm.Slurm(self, self.folder / "slurm")
            self.env["SLURM_CONF"] = str(new.conf)
            new.start()
            self._slurm = new
        return self

    def with_pbs(self) -> Pbs:
        """Start the fake of PBS unless it runs, and put its commands first on PATH."""
        return self._with_batch(Pbs)

    def with_lsf(self) -> Lsf:
        """Start the fake of LSF unless it runs, and put its commands first on PATH."""
        return self._with_batch(Lsf)

    def _with_batch(self, kind: type[Batch]) -> Batch:
        if kind not in self._batch:
            new = kind(self.folder, self, {**BRISK, **kind.brisk})
            new.start()
            self._batch[kind] = new
        batch = self._batch[kind]
        assert isinstance(batch, kind)
        path = self.env.get("PATH", batch.env["PATH"])
        if not path.startswith(f"{batch.bin}:"):
            path = f"{batch.bin}:{path}"
        self.env["PATH"] = path  # until the test ends
        return batch

    def salloc(
        self,
        nodes: int,
        argv: Sequence[str | Path],
        options: Sequence[str] = (),
        host: str = CTL,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, on `host`, inside a Slurm allocation of so many nodes."""
        words = ["salloc", "--quiet", f"--nodes={nodes}", *options, *argv]
        return self.run(host, words, env, cwd, timeout)

    def hostfile(self, path: Path, slots: int = 1) -> Path:
        """Write all hosts and their slots, as Open MPI reads them; return the path."""
        path.write_text("".join(f"{name} slots={slots}\n" for name in self.names))
        return path

    def reset(self) -> None:
        """Make all as it was before the test; jobs are cancelled, Slurm's nodes idle again."""
        if self._slurm or self._batch:
            self.repair()  # a job ends only when the daemons of its nodes say so
        if self._slurm:
            self._slurm.cancel_all()
        for batch in self._batch.values():
            batch.cancel_all()
        self.env.pop("PATH", None)
        super().reset()
        if self._slurm:
            self._slurm.wait_idle()
