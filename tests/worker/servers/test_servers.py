"""Workers with parameter servers compute what one process does, and keep their distance.

Servers are threads of this process with real sockets; the judge is torch's own optimizer.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchloom.errors import LoomError
from torchloom.worker.servers.frames import ConnectionEnded, ServerSocket, TensorLink, connect
from torchloom.worker.servers.remote_optimizer import MixedParameters, RemoteOptimizer
from torchloom.worker.servers.server import ParameterServer, WorkerLost, serve

from ...harness.home import until

KINDS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"lr": 0.01, "weight_decay": 0.01},
    "adamw": {"lr": 0.01, "weight_decay": 0.1},
}
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
STEPS = 50


class Served:
    """Servers of one job, in threads."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(self, count: int, workers: int, staleness: int | None = None) -> None:
        for index in range(count):
            server = ParameterServer(workers, staleness)
            one = threading.Thread(target=self._serve, args=(ServerSocket(index, True), server))
            one.start()
            self._threads.append(one)

    def join(self) -> list[str]:
        """Wait until all have ended; return why."""
        for one in self._threads:
            one.join(60)
            assert not one.is_alive()
        return self.ended

    def _serve(self, listener: ServerSocket, server: ParameterServer) -> None:
        try:
            serve(listener, server)
            self.ended.append("")
        except LoomError as error:
            self.ended.append(str(error))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    monkeypatch.setenv("LOOM_JOB", "job")
    monkeypatch.setenv("LOOM_ATTEMPT", "0")
    return Served()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))


def batch(step: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(12, 7, generator=torch.Generator().manual_seed(step))
    return inputs, inputs[:, :3].argmax(1)


def losses(model: nn.Module, optimizer: Any, share: int, shares: int, steps: range) -> list[float]:
    """Train a share of each batch; return the losses."""
    found = []
    for step in steps:
        inputs, targets = (each[share::shares] for each in batch(step))
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("count", [1, 3])
def test_one_worker_takes_the_steps_of_torch_and_its_state_is_torchs(
    served: Served, kind: str, count: int
) -> None:
    served.start(count, workers=1)
    model, judge = net(), net()
    remote = RemoteOptimizer(model.parameters(), kind, KINDS[kind], count)
    local = TORCH[kind](judge.parameters(), **KINDS[kind])  # type: ignore[arg-type]

    mine = losses(model, remote, 0, 1, range(STEPS))
    theirs = losses(judge, local, 0, 1, range(STEPS))

    assert mine == pytest.approx(theirs, abs=1e-5)
    state, expected = remote.state_dict(), local.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert state["state"].keys() == expected["state"].keys()
    for at, each in expected["state"].items():
        for name, value in each.items():
            assert torch.allclose(state["state"][at][name], value, atol=1e-6), (at, name)
    remote.close()
    assert served.join() == [""] * count


def test_a_state_that_was_saved_is_trained_further_with_the_same_bits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.start(2, workers=1)
    model = net()
    remote = RemoteOptimizer(model.parameters(), "adamw", KINDS["adamw"], 2)
    losses(model, remote, 0, 1, range(10))
    state = remote.state_dict()
    weights = {name: each.clone() for name, each in model.state_dict().items()}
    whole = losses(model, remote, 0, 1, range(10, 20))
    remote.close()
    served.join()

    monkeypatch.setenv("LOOM_ATTEMPT", "1")
    served.start(2, workers=1)
    model = net()
    again = RemoteOptimizer(model.parameters(), "adamw", KINDS["adamw"], 2)
    model.load_state_dict(weights)
    again.load_state_dict(state)

    assert losses(model, again, 0, 1, range(10, 20)) == whole
    again.close()


def pushing(links: list[TensorLink], rank: int, gradient: float) -> Callable[[], Tensor]:
    """Return how a worker pushes one number."""
    values = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}

    def push() -> Tensor:
        links[rank].send({"op": "push", "values": values}, torch.tensor([gradient]))
        return links[rank].receive()[1]

    return push


def joined(workers: int) -> list[TensorLink]:
    """Return connections of workers that have joined a server which holds a zero."""
    links = [connect(0, {"rank": rank}, 30) for rank in range(workers)]
    values = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    links[0].send({"op": "begin", "kind": "sgd", "values": values}, torch.zeros(1))
    for link in links[1:]:
        link.send({"op": "join"})
    assert [link.receive()[1].tolist() for link in links] == [[0.0]] * workers
    return links


@pytest.fixture
def threads() -> Iterator[Callable[[Callable[[], Any]], list[Any]]]:
    started: list[threading.Thread] = []

    def run(call: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []
        started.append(threading.Thread(target=lambda: found.append(call())))
        started[-1].start()
        return found

    yield run
    for one in started:
        one.join(60)


def test_sync_steps_by_the_mean_when_all_have_pushed(served: Served, threads: Any) -> None:
    served.start(1, workers=3)
    links = joined(3)

    early = [threads(pushing(links, rank, gradient)) for rank, gradient in ((1, 2.0), (2, 6.0))]
    time.sleep(0.1)  # nothing may happen in it
    assert early == [[], []]
    last = pushing(links, 0, 1.0)()

    until(lambda: all(early))
    assert [last.tolist(), early[0][0].tolist(), early[1][0].tolist()] == [[-3.0]] * 3


def test_async_steps_at_once_and_waits_only_beyond_the_bound(served: Served, threads: Any) -> None:
    served.start(1, workers=2, staleness=3)
    links = joined(2)
    fast, slow = pushing(links, 0, 2.0), pushing(links, 1, 4.0)

    ahead = [fast().tolist() for _ in range(3)]  # the slow one has pushed nothing yet
    held = threads(fast)
    time.sleep(0.1)  # nothing may happen in it
    assert held == []
    behind = slow()

    until(lambda: held)
    assert ahead == [[-1.0], [-2.0], [-3.0]]  # half of the learning rate: there are two workers
    assert (behind.tolist(), held[0].tolist()) == ([-6.0], [-6.0])
    links[1].send({"op": "done"})  # and nobody is waited for who is done
    assert [fast().tolist() for _ in range(5)][-1] == [-11.0]
    links[0].send({"op": "done"})
    assert served.join() == [""]


def test_a_lost_worker_ends_the_server_and_all_who_wait(served: Served, threads: Any) -> None:
    served.start(1, workers=3)
    links = joined(3)

    def refused() -> str:
        with pytest.raises(ConnectionEnded) as error:
            pushing(links, 0, 1.0)()
        return str(error.value)

    waiting = threads(refused)
    links[2].close()

    until(lambda: waiting)
    assert waiting == ["the connection to parameter server 0 has ended: its own log says why"]
    assert served.join() == [str(WorkerLost(2))]


def test_who_does_not_know_the_secret_of_the_run_is_turned_away(
    served: Served, tmp_path: Path
) -> None:
    import json
    import socket

    served.start(1, workers=1)
    (note,) = (tmp_path / "runs").rglob("0-0.json")
    address = json.loads(note.read_text())
    stranger = TensorLink(socket.create_connection((address["host"], address["port"])), "it")
    stranger.send({"rank": 0, "secret": "guessed"})
    stranger.send({"op": "state"})

    with pytest.raises(ConnectionEnded):
        stranger.receive()
    assert note.stat().st_mode & 0o777 == 0o600
    (link,) = joined(1)
    link.send({"op": "done"})
    assert served.join() == [""]
    assert not note.exists()


def test_parameters_of_several_types_are_refused() -> None:
    given = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))]

    with pytest.raises(MixedParameters, match=r"there are torch\.float32, torch\.float64"):
        RemoteOptimizer(given, "sgd", KINDS["sgd"], 1)
