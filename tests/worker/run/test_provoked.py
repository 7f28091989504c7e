"""A provoked exception comes, even if the step it was meant for is lost to a peer's death."""

import signal
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from torchloom.worker.run.run import Run
from torchloom.worker.run.steps import SIGNAL, Dealt, Provoked


class Peers:
    """What carries a run whose peers can be lost: such a loss is recovered from, nothing else."""

    is_live, is_over = True, False

    def __init__(self) -> None:
        self.live = self
        self.recovered: list[str] = []

    def begin(self, source: int, first: int, epochs: int, at: int, _: Any) -> tuple[Dealt, int]:
        return self._dealt(at), at

    def recover(self, at: int, error: BaseException) -> tuple[Dealt, int]:
        if not isinstance(error, ConnectionError):
            raise error
        self.recovered.append(str(error))
        return self._dealt(at), at

    def noting(self, add: Any) -> Any:
        return add

    def boundary(self, at: int) -> None:
        pass

    def _dealt(self, at: int) -> Dealt:
        return ((0, number) for number in range(at, 10))


@pytest.fixture
def run() -> Iterator[Run]:
    threadlet = MagicMock()
    threadlet.acts.stopping = threadlet.boundary.reach.return_value = False
    found = Run(threadlet, "")
    found._resumable = Peers()
    before = signal.getsignal(SIGNAL)
    yield found
    signal.signal(SIGNAL, before)


def test_a_provoked_step_that_a_lost_peer_breaks_is_provoked_again(run: Run) -> None:
    seen: list[int] = []

    def train() -> None:
        for step in run.steps(10):
            seen.append(step.number)
            with step:
                if step.number == 1:
                    signal.raise_signal(SIGNAL)
                if seen == [0, 1, 2]:
                    raise ConnectionError("rank 3 is gone")

    with pytest.raises(Provoked, match="step 2"):
        train()

    assert seen == [0, 1, 2, 2]
    assert run._resumable.recovered == ["rank 3 is gone"]
