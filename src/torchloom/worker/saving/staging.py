"""The memory that state is copied into: made once, in pages of its own, never paged in twice."""

import contextlib
import mmap
import sys
from typing import Any

import torch

_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, Linux 4.14


class Staging:
    """Page-aligned memory that grows when it must and is used again otherwise.

    A fork sees it as zeros, so that no page of it is copied on the next write. On a machine with
    CUDA it is pinned when the state is there.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._pinned = 0  # address

    @property
    def memory(self) -> mmap.mmap:
        """Return the memory; views of it keep it alive."""
        if self._memory is None:
            raise RuntimeError("nothing is staged yet")
        return self._memory

    @property
    def size(self) -> int:
        """Return how many bytes there are."""
        return len(self._memory) if self._memory is not None else 0

    def ensure(self, size: int, pin: bool) -> None:
        """Have at least this much memory; what was in it is lost when it had to grow."""
        if self.size < size:
            self.free()
            self._memory = _allocated(size)
        if pin and not self._pinned:
            address = torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()
            if int(_cudart().cudaHostRegister(address, self.size, 0)) == 0:
                self._pinned = address

    def free(self) -> None:
        """Give the memory back as soon as no view of it is left."""
        if self._pinned:
            _cudart().cudaHostUnregister(self._pinned)
        self._memory, self._pinned = None, 0


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _allocated(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        for advice in (mmap.MADV_HUGEPAGE, _WIPE_ON_FORK):
            with contextlib.suppress(OSError):  # a kernel without it: slower, not wrong
                memory.madvise(advice)
    torch.frombuffer(memory, dtype=torch.uint8).zero_()  # every page is there from now on
    return memory
