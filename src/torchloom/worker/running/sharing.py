"""See that ranks on several hosts save in one place: a folder by the same name need not be one."""

import os
import secrets
from typing import Protocol

from torchloom.errors import UserError
from torchloom.worker.running import peers


class NotShared(UserError):
    """The hosts of a run do not see the same folder for its checkpoints."""

    code = "checkpoints_not_shared"

    def __init__(self, root: str, ranks: list[int]) -> None:
        who = ", ".join(map(str, ranks))
        remedy = "set LOOM_CHECKPOINTS to a folder that all hosts share, or to s3://bucket/folder"
        super().__init__(f"rank 0's checkpoints in {root} cannot be seen by ranks {who}: {remedy}")


class Marked(Protocol):
    """A store in which one can leave a mark for others."""

    root: str

    def mark(self, nonce: str) -> None: ...

    def sees(self, nonce: str) -> bool: ...


def check_shared(storage: Marked, rank: int) -> None:
    """Refuse to go on where ranks of other hosts do not see rank 0's mark; all come together."""
    if not peers.together() or _is_one_host():
        return
    nonce = peers.gather(secrets.randbits(62))[0]
    if rank == 0:
        storage.mark(f"{nonce:x}")
    peers.gather(0)  # it is there now
    seen = peers.gather(int(storage.sees(f"{nonce:x}")))
    if not all(seen):
        raise NotShared(storage.root, [rank for rank, sees in enumerate(seen) if not sees])


def _is_one_host() -> bool:
    """Tell whether all ranks of the group are on this host, by what their launcher said."""
    return os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "")
