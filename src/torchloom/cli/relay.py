"""Show what a running job prints: one program's bytes as they are, many ranks' lines with names."""

import os
import sys

from torchloom.launch.logreader import STREAMS, Tail, Wait, chunks
from torchloom.launch.record import RankRecord, Record


def relay_logs(record: Record, plain: bool) -> None:
    """Copy the job's outputs until it is over; a component's go to stderr, as TorchX has it."""
    ranks = record.ranks
    tails = [Tail(record.log_path(rank), stream) for rank in ranks for stream in STREAMS]
    targets = [1 if plain and stream == "stdout" else 2 for _ in ranks for stream in STREAMS]
    names = label(ranks)
    prefixes = [names[which // 2].encode() for which in range(len(tails))]
    sys.stdout.flush()
    if plain and len(ranks) == 1:
        for which, data in chunks(tails, _over(record)):
            _write(targets[which], data)
        return
    partial = [b""] * len(tails)
    for which, data in chunks(tails, _over(record)):
        *whole, partial[which] = (partial[which] + data).split(b"\n")
        _write(targets[which], b"".join(prefixes[which] + line + b"\n" for line in whole))
    for which, rest in enumerate(partial):
        if rest:
            _write(targets[which], prefixes[which] + rest + b"\n")


def label(ranks: tuple[RankRecord, ...] | list[RankRecord]) -> list[str]:
    """Return what stands before each rank's lines: `[rank3]: `, or `[trainer0]: ` by its role."""
    grouped = {rank.role for rank in ranks if rank.logs.count("/") > 1}
    several = len(grouped) > 1
    return [
        f"[{rank.role}.rank{rank.rank}]: "
        if rank.role in grouped and several
        else f"[rank{rank.rank}]: "
        if rank.role in grouped
        else f"[{rank.role}{rank.replica}]: "
        for rank in ranks
    ]


def _over(record: Record) -> Wait:
    guard = record.guard
    return lambda pause: guard is None or guard.wait_exit(pause)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
