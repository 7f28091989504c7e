"""Show what a running job prints: one program's bytes as they are, many ranks' lines with names."""

import os
from collections.abc import Sequence

from torchloom.launch.logreader import STREAMS, Tail, Wait, chunks
from torchloom.launch.record import RankRecord, Record


def relay_logs(record: Record, plain: bool, wait: Wait, prefix: str | None = None) -> None:
    """Copy the job's outputs until it is over; a component's go to stderr, as TorchX has it.

    A prefix may name {rank}, {local_rank} and {role_name}; an empty one leaves all as it comes.
    """
    sources = [(rank, stream) for rank in record.ranks for stream in STREAMS]
    tails = [Tail(record.log_path(rank), stream) for rank, stream in sources]
    targets = [1 if plain and stream == "stdout" else 2 for _, stream in sources]
    if prefix == "" or (plain and len(record.ranks) == 1 and prefix is None):
        for which, data in chunks(tails, wait):
            _write(targets[which], data)
        return
    labels = label(record.ranks) if prefix is None else _filled(prefix, record.ranks)
    names = [name.encode() for name in labels for _ in STREAMS]
    partial = [b""] * len(tails)
    for which, data in chunks(tails, wait):
        lines, partial[which] = split_lines(partial[which] + data)
        _write(targets[which], b"".join(names[which] + line for line in lines))
    for which, rest in enumerate(partial):
        if rest:
            _write(targets[which], names[which] + rest + b"\n")


def _filled(prefix: str, ranks: Sequence[RankRecord]) -> list[str]:
    return [
        prefix.replace("{rank}", str(rank.rank))
        .replace("{local_rank}", str(rank.local_rank))
        .replace("{role_name}", rank.role)
        for rank in ranks
    ]


def split_lines(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole lines with their endings, and what follows the last of them.

    A progress bar ends its lines with \\r; one that comes last may still become \\r\\n.
    """
    lines = data.splitlines(keepends=True)
    rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
    return lines, rest


def label(ranks: Sequence[RankRecord]) -> list[str]:
    """Return what stands before each rank's lines: `[rank3]: `, or `[trainer0]: ` by its role."""
    groups = {rank.role for rank in ranks if _is_of_group(rank)}
    return [f"[{_name(rank, len(groups) > 1)}]: " for rank in ranks]


def _name(rank: RankRecord, several_groups: bool) -> str:
    if not _is_of_group(rank):
        return f"{rank.role}{rank.replica}"
    return f"{rank.role}.rank{rank.rank}" if several_groups else f"rank{rank.rank}"


def _is_of_group(rank: RankRecord) -> bool:
    """Tell whether its replica may have several ranks: then its logs lie one level deeper."""
    return rank.logs.count("/") > 1


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
