"""A parameter server: its share of the parameters, stepped by the gradients that workers push."""

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchloom.errors import Failure
from torchloom.worker.servers.frames import ConnectionEnded, Message, ServerSocket, TensorLink

KINDS: Mapping[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


class WorkerLost(Failure):
    """A worker went away before the end of the training."""

    code = "worker_lost"

    def __init__(self, rank: int) -> None:
        self.rank = rank
        super().__init__(f"worker {rank} is gone: its own log says why")


class ParameterShare:
    """A flat share of the parameters with the optimizer's state of it."""

    def __init__(self, kind: str, values: Mapping[str, Any], flat: Tensor) -> None:
        self._flat = nn.Parameter(flat)
        self._optimizer = KINDS[kind]([self._flat], **values)

    @property
    def flat(self) -> Tensor:
        """The current parameters."""
        return self._flat.detach()

    def step(self, gradient: Tensor, values: Mapping[str, Any], share: float = 1.0) -> None:
        """Take one step with these values of the optimizer and a share of the learning rate."""
        self._optimizer.param_groups[0].update(values)
        self._optimizer.param_groups[0]["lr"] = values["lr"] * share
        self._flat.grad = gradient
        self._optimizer.step()
        self._flat.grad = None

    def state(self) -> Message:
        """Return parameters and state as one tensor, and in the head what they are."""
        state = self._optimizer.state.get(self._flat, {})
        arrays = {name: each for name, each in state.items() if is_array(each)}
        counts = {name: float(each) for name, each in state.items() if is_count(each)}
        return {"arrays": list(arrays), "counts": counts}, torch.cat([self.flat, *arrays.values()])

    def load(self, head: Mapping[str, Any], tensor: Tensor) -> None:
        """Replace parameters and state."""
        flat, *arrays = torch.split(tensor, self._flat.numel())
        with torch.no_grad():
            self._flat.copy_(flat)
        counts = {name: torch.tensor(count) for name, count in head["counts"].items()}
        found = {**counts, **dict(zip(head["arrays"], arrays, strict=True))}
        self._optimizer.state.clear()
        if found:
            self._optimizer.state[self._flat].update(found)


class ParameterServer:
    """Decides when pushes are applied and answered; `serve` does it for connections.

    `sync`: a step is taken when all workers have pushed, with the mean of their gradients, summed
    in the order of ranks. `async`: each push is a step of its own, with the learning rate divided
    by the number of workers, and is answered at once, unless the worker would be more than
    `staleness` steps ahead of the slowest one.
    """

    def __init__(self, workers: int, staleness: int | None) -> None:
        self._workers = workers
        self._staleness = staleness  # None: sync
        self._changed = threading.Condition()
        self._share: ParameterShare | None = None
        self._pushed: dict[int, Tensor] = {}
        self._clocks = dict.fromkeys(range(workers), 0)  # steps pushed; without those that are done
        self._rounds = 0
        self._lost: int | None = None

    def begin(self, kind: str, values: Mapping[str, Any], flat: Tensor) -> Tensor:
        """Take the initial parameters."""
        with self._changed:
            self._share = ParameterShare(kind, values, flat)
            self._changed.notify_all()
        return flat

    def join(self) -> Tensor:
        """Return the initial parameters, once they are there."""
        with self._changed:
            self._wait(lambda: self._share is not None)
            return self._there().flat.clone()

    def push(self, rank: int, gradient: Tensor, values: Mapping[str, Any]) -> Tensor:
        """Take a worker's gradient; return the parameters for its next step."""
        with self._changed:
            if self._staleness is None:
                self._push_together(rank, gradient, values)
            else:
                self._there().step(gradient, values, 1 / self._workers)
                self._clocks[rank] += 1
                self._changed.notify_all()
                self._wait(lambda: self._is_near(rank))
            return self._there().flat.clone()

    def state(self) -> Message:
        """Return parameters and state."""
        with self._changed:
            return self._there().state()

    def load(self, head: Mapping[str, Any], tensor: Tensor) -> None:
        """Replace parameters and state."""
        with self._changed:
            self._there().load(head, tensor)

    def leave(self, rank: int, is_done: bool) -> None:
        """Take note that a worker is done, or lost."""
        with self._changed:
            if self._clocks.pop(rank, None) is not None and not is_done and self._lost is None:
                self._lost = rank
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when all workers are done; raise WorkerLost if one is lost."""
        with self._changed:
            self._wait(lambda: not self._clocks)

    def _push_together(self, rank: int, gradient: Tensor, values: Mapping[str, Any]) -> None:
        mine = self._rounds
        self._pushed[rank] = gradient
        if len(self._pushed) == self._workers:
            total = self._pushed[0].clone()
            for each in range(1, self._workers):
                total += self._pushed[each]
            self._there().step(total.div_(self._workers), values)
            self._pushed.clear()
            self._rounds += 1
            self._changed.notify_all()
        self._wait(lambda: self._rounds > mine)

    def _is_near(self, rank: int) -> bool:
        """Tell whether a worker is at most `staleness` steps ahead of the slowest one."""
        return self._clocks[rank] - min(self._clocks.values()) <= (self._staleness or 0)

    def _there(self) -> ParameterShare:
        assert self._share is not None, "workers join before they push"
        return self._share

    def _wait(self, is_so: Any) -> None:
        self._changed.wait_for(lambda: self._lost is not None or is_so())
        if self._lost is not None:
            raise WorkerLost(self._lost)


def serve(listener: ServerSocket, server: ParameterServer) -> None:
    """Answer workers until all are done; raise WorkerLost if one is lost."""

    def welcome() -> None:
        while True:
            try:
                frames, head = listener.accept()
            except OSError:
                return  # closed
            one = (server, frames, int(head["rank"]))
            threading.Thread(target=_answer, args=one, daemon=True).start()

    threading.Thread(target=welcome, daemon=True).start()
    try:
        server.wait()
    finally:
        listener.close()


def _answer(server: ParameterServer, frames: TensorLink, rank: int) -> None:
    """Answer one worker, until it is done or gone."""
    is_done = False
    try:
        while not is_done:
            head, tensor = frames.receive()
            match head["op"]:
                case "begin":
                    frames.send({}, server.begin(head["kind"], head["values"], tensor))
                case "join":
                    frames.send({}, server.join())
                case "push":
                    frames.send({}, server.push(rank, tensor, head["values"]))
                case "state":
                    frames.send(*server.state())
                case "load":
                    server.load(head, tensor)
                    frames.send({})
                case "done":
                    is_done = True
    except (ConnectionEnded, WorkerLost):
        pass
    finally:
        server.leave(rank, is_done)
        frames.close()


def is_array(value: Any) -> bool:
    """Tell whether a value of an optimizer's state has a number for each weight."""
    return isinstance(value, Tensor) and value.dim() > 0


def is_count(value: Any) -> bool:
    """Tell whether a value of an optimizer's state is one number."""
    return isinstance(value, Tensor) and value.dim() == 0
