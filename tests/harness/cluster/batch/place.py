"""Which hosts a job gets: first fit, in the order of the hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .job import Chunk


@dataclass(frozen=True)
class Room:
    """What a host has, or what is left of it."""

    cpus: int
    gpus: int
    memory_mb: int

    def holds(self, chunk: Chunk) -> bool:
        """Say whether the chunk fits."""
        return (
            chunk.cpus <= self.cpus
            and chunk.gpus <= self.gpus
            and chunk.memory_mb <= self.memory_mb
        )

    def less(self, chunk: Chunk) -> "Room":
        """Return what is left when the chunk is given."""
        return replace(
            self,
            cpus=self.cpus - chunk.cpus,
            gpus=self.gpus - chunk.gpus,
            memory_mb=self.memory_mb - chunk.memory_mb,
        )


def place(chunks: Sequence[Chunk], arrange: str, rooms: Mapping[str, Room]) -> list[str] | None:
    """Return a host for each chunk, or nothing where they do not fit together."""
    if arrange == "pack":
        each = (_fill(chunks, {name: room}, alone=False) for name, room in rooms.items())
        return next((hosts for hosts in each if hosts), None)
    return _fill(chunks, rooms, alone=arrange == "scatter")


def _fill(chunks: Sequence[Chunk], rooms: Mapping[str, Room], alone: bool) -> list[str] | None:
    left = dict(rooms)
    hosts = []
    for chunk in chunks:
        fitting = (
            name
            for name, room in left.items()
            if room.holds(chunk)
            and (not chunk.host or name in chunk.host.split())
            and not (alone and name in hosts)
        )
        host = next(fitting, None)
        if host is None:
            return None
        hosts.append(host)
        left[host] = left[host].less(chunk)
    return hosts
