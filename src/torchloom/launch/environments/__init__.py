"""Where are we? One small class a flavour says what it sees; an ordered tuple chooses."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchloom.launch.environments.allocations import Jsrun, Lsf, Pbs, Slurm
from torchloom.launch.environments.clouds import AwsBatch, Kubernetes, SageMaker
from torchloom.launch.environments.launchers import Mpich, Mvapich, OpenMpi, Pals, Plain, Torchrun
from torchloom.launch.environments.world import Env, Flavour, World, number
from torchloom.launch.hosts.host_lists import Read

__all__ = ["Flavour", "World", "find_world", "flavours"]


def flavours(own_host: str, read: Read = Path.read_text) -> tuple[Flavour, ...]:
    """Return every flavour, innermost launcher first: it is the one that started this process.

    `mpirun` in a Slurm job starts its helpers by `srun`, whose variables its ranks inherit.
    """
    return (
        Torchrun(),
        Jsrun(),
        OpenMpi(),
        Mvapich(),
        Pals(),
        Mpich(),
        Slurm(),
        Pbs(read, own_host),
        Lsf(read),
        Kubernetes(),
        AwsBatch(own_host),
        SageMaker(),
        Plain(own_host),
    )


def find_world(env: Env, own_host: str, read: Read = Path.read_text) -> World:
    """Return where this process is: the first flavour's word, and around a rank its allocation."""
    order = flavours(own_host, read)
    found = [world for flavour in order if (world := flavour.detect(env))]
    inner = found[0]
    if inner.is_rank and not inner.hosts:
        around = _first_with_hosts(found[1:-1])
        inner = inner.within(around, own_host) if around else inner
    doubts = tuple(word for flavour in order if (word := flavour.doubt(env)))
    gpus = number(env, "NGPU_PER_HOST") or inner.gpus_per_host  # the user's word is the last
    return replace(inner, gpus_per_host=gpus, notes=inner.notes + doubts)


def _first_with_hosts(worlds: Sequence[World]) -> World | None:
    return next((world for world in worlds if world.hosts), None)
