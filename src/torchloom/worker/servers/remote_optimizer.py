"""The workers' side of parameter servers: an optimizer whose steps are taken by the servers."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchloom.errors import UserError
from torchloom.worker.dist import comm
from torchloom.worker.servers.frames import Message, connect
from torchloom.worker.servers.server import KINDS, is_array, is_count

TIMED = f"{comm.PREFIX}/servers/push_pull"
UP = 600.0  # seconds until all servers are up
LIVE = ("lr", "weight_decay", "momentum")  # values that travel with each push


class MixedParameters(UserError):
    """The parameters of a model have different types."""

    code = "mixed_parameters"

    def __init__(self, types: Iterable[torch.dtype]) -> None:
        found = ", ".join(sorted(map(str, types)))
        super().__init__(f"parameter servers hold parameters of one type, and there are {found}")


class RemoteOptimizer(torch.optim.Optimizer):
    """Pushes the gradients of this worker to the servers and pulls the parameters.

    Its state dict is that of the optimizer of torch that the servers run: to save or load it is a
    collective call, which also pulls, or pushes, the parameters.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        kind: str,
        values: Mapping[str, Any],
        servers: int,
    ) -> None:
        given = list(parameters)
        types = {each.dtype for each in given}
        if len(types) > 1:
            raise MixedParameters(types)
        super().__init__(given, dict(values))
        self.timed: dict[str, float] = {}  # metrics of the last push and pull
        self._given = given
        self._kind = kind
        self._values = dict(values)
        rank = comm.collectives().rank
        self._is_first = rank == 0
        size = sum(each.numel() for each in given)
        self._sizes = [size * (at + 1) // servers - size * at // servers for at in range(servers)]
        self._links = [connect(at, {"rank": rank}, UP) for at in range(servers)]
        if self._is_first:
            head = {"op": "begin", "kind": kind, "values": self._values}
            answers = self._asked(head, _flat(given))
        else:
            answers = self._asked({"op": "join"})
        self._pull(answers)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Have the servers take one step with the gradients; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        values = {name: group[name] for name in LIVE if name in group}
        gradients = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in self._given]
        began, flat = time.perf_counter(), _flat(gradients)
        self._pull(self._asked({"op": "push", "values": values}, flat))
        took = time.perf_counter() - began
        self.timed = {f"{TIMED}/seconds": took, f"{TIMED}/bytes": 2 * flat.nbytes}
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state with the parameters of this moment pulled. Collective."""
        comm.barrier()  # no worker pushes while others ask
        answers = self._asked({"op": "state"})
        comm.barrier()
        split = [
            torch.split(part, size) for (_, part), size in zip(answers, self._sizes, strict=True)
        ]
        flat, *arrays = (torch.cat(each) for each in zip(*split, strict=True))
        self._fill(flat)
        head, inner = answers[0][0], self._inner()
        shares = {
            name: list(self._cut(array)) for name, array in zip(head["arrays"], arrays, strict=True)
        }
        for at, each in enumerate(self._given if head["counts"] or shares else ()):
            counts = {name: torch.tensor(count) for name, count in head["counts"].items()}
            inner.state[each] = {**counts, **{name: parts[at] for name, parts in shares.items()}}
        found: dict[str, Any] = inner.state_dict()
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Give the servers a state, with this process' parameters. Collective."""
        inner = self._inner()
        inner.load_state_dict(dict(state_dict))
        for name in LIVE:
            if name in inner.param_groups[0]:
                self.param_groups[0][name] = inner.param_groups[0][name]
        if self._is_first:
            states = [inner.state.get(each, {}) for each in self._given]
            first = states[0] if states else {}
            counts = {name: float(v) for name, v in first.items() if is_count(v)}
            names = [name for name, v in first.items() if is_array(v)]
            flats = [_flat(self._given), *(_flat([s[name] for s in states]) for name in names)]
            parts = zip(*(torch.split(flat, self._sizes) for flat in flats), strict=True)
            head = {"op": "load", "arrays": names, "counts": counts}
            for link, each in zip(self._links, parts, strict=True):
                link.send(head, torch.cat(each))
            for link in self._links:
                link.receive()
        comm.barrier()

    def close(self) -> None:
        """Tell the servers that this worker is done; they end when all are."""
        for link in self._links:
            link.send({"op": "done"})
            link.close()
        self._links.clear()

    def _inner(self) -> torch.optim.Optimizer:
        """Return the optimizer of torch that has the state, with the current values."""
        inner = KINDS[self._kind](self._given, **self._values)
        values = self.param_groups[0]
        inner.param_groups[0].update({name: values[name] for name in LIVE if name in values})
        return inner

    def _asked(self, head: Mapping[str, Any], flat: Tensor | None = None) -> list[Message]:
        """Send each server its part, then return what each answers."""
        whole = torch.empty(0) if flat is None else flat
        sizes = [0] * len(self._links) if flat is None else self._sizes
        for link, part in zip(self._links, torch.split(whole, sizes), strict=True):
            link.send(head, part)
        return [link.receive() for link in self._links]

    def _pull(self, answers: list[Message]) -> None:
        self._fill(torch.cat([tensor for _, tensor in answers]))

    @torch.no_grad()
    def _fill(self, flat: Tensor) -> None:
        for each, part in zip(self._given, self._cut(flat), strict=True):
            each.copy_(part)

    def _cut(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield the part of each parameter, in its shape."""
        parts = torch.split(flat, [each.numel() for each in self._given])
        return (part.view(each.shape) for part, each in zip(parts, self._given, strict=True))


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return tensors one after another, on the host."""
    return torch.cat([each.detach().reshape(-1).to("cpu") for each in tensors])
