"""Arguments that hold several values in one short text, parsed alike for every component."""

import warnings
from dataclasses import dataclass
from pathlib import PurePath

from torchloom.specs.api import resource
from torchloom.specs.arguments import ArgumentError


@dataclass
class StructuredNameArgument:
    """`EXPERIMENT/RUN`; either part may be left out."""

    experiment_name: str
    run_name: str

    def __str__(self) -> str:
        return f"{self.experiment_name or ''}/{self.run_name}"

    @staticmethod
    def parse_from(
        name: str,
        m: str | None = None,
        script: str | None = None,
        default_experiment_name: str = "default-experiment",
    ) -> "StructuredNameArgument":
        """Read a name; without a run name the module's or the script's own name is taken."""
        if bool(m) == bool(script):
            given = "both" if m else "neither"
            raise ArgumentError(f"give either a script or a module (-m), not {given}")
        experiment, slash, run = name.partition("/")
        if not slash:
            experiment, run = "", name
        fallback = m.rpartition(".")[2] if m else PurePath(script or "").stem
        return StructuredNameArgument(experiment or default_experiment_name, run or fallback)


@dataclass
class StructuredJArgument:
    """`NODESxPROCESSES`; on a host with GPUs, `NODES` alone means one process per GPU."""

    nnodes: int
    nproc_per_node: int

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc_per_node}"

    @staticmethod
    def parse_from(h: str, j: str) -> "StructuredJArgument":
        """Read a topology for a named host; a count that is not the host's GPUs gets a warning."""
        gpus = resource(h=h).gpu
        nodes, times, processes = j.partition("x")
        if not nodes.strip().isdecimal() or (times and not processes.strip().isdecimal()):
            raise ArgumentError(f"-j {j!r} is not NODESxPROCESSES, for example -j 1x8")
        if not times and gpus <= 0:
            raise ArgumentError(
                f"-j {j} gives no processes per node, and {h!r} has no GPUs to count;"
                f" write for example -j {j}x8"
            )
        per_node = int(processes) if times else gpus
        if per_node != gpus:
            warnings.warn(
                f"-j {j} starts {per_node} processes on each {h}, which has {gpus} GPUs;"
                f" -j {nodes} would start one per GPU",
                stacklevel=2,
            )
        return StructuredJArgument(int(nodes), per_node)
