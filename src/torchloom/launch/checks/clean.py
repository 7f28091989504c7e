"""End and remove what crashed launches left, one thing at a time, and tell each."""

import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchloom.launch.checks.finding import Place
from torchloom.launch.checks.leftovers import Leftover, find

GRACE = 2.0  # seconds between SIGTERM and SIGKILL
PATIENCE = 10.0  # seconds for the kernel to let a killed process go


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became of a leftover: gone, or why not."""

    leftover: Leftover
    done: bool
    text: str


def clean(place: Place) -> Iterator[Cleaned]:
    """End all processes first: what they hold in shared memory is free only then."""
    found = find(place)
    processes = [each for each in found if each.process]
    yield from end(processes)
    again = find(place) if processes else found
    for each in again:
        if each.path is not None:
            yield _remove(each)


def end(found: Sequence[Leftover], grace: float = GRACE) -> Iterator[Cleaned]:
    """SIGTERM to all, one grace for all, SIGKILL to who is still there."""
    for each in found:
        if each.process:
            each.process.send(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for each in found:
        if each.process is None:
            continue
        gone = each.process.wait_exit(max(0.0, deadline - time.monotonic()))
        if not gone:
            each.process.send(signal.SIGKILL)
            gone = each.process.wait_exit(PATIENCE)
        yield Cleaned(each, gone, "ended" if gone else "the kernel does not let it end")


def _remove(each: Leftover) -> Cleaned:
    assert each.path is not None
    try:
        if each.kind == "folder":
            shutil.rmtree(each.path)
        else:
            each.path.unlink()
    except FileNotFoundError:
        return Cleaned(each, True, "gone already")
    except OSError as error:
        return Cleaned(each, False, f"cannot be removed: {error.strerror}")
    return Cleaned(each, True, "removed")
