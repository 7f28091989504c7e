"""The state that checkpoints and live recovery carry: models and tracked objects."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchloom.errors import UserError
from torchloom.worker.run.parts import divided_like, is_divided
from torchloom.worker.run.rng import TrackedGenerator
from torchloom.worker.run.wrap import Wrapped, plain, tensors

if TYPE_CHECKING:
    from torchloom.worker.run.exchange import WeightExchange

_COMMON = (Optimizer, LRScheduler, GradScaler)


def is_average(state: Any, models: Iterable[Iterable[Tensor]]) -> bool:
    """Tell whether a state has a tensor for each weight of one of these models, as averages do."""
    there = Counter(tensor.shape for tensor in tensors(state) if tensor.is_floating_point())
    wanted = (Counter(weight.shape for weight in model) for model in models)
    return any(shapes and shapes <= there for shapes in wanted)


State = dict[str, Any]


class BadTrackedState(UserError):
    """An object or a name that cannot be tracked."""

    code = "cannot_track"


class OtherProgram(UserError):
    """The checkpoint does not fit this program."""

    code = "other_program"


class ShardedState(UserError):
    """A model or an optimizer that is sharded in a way whose shards have no names."""

    code = "sharded_state"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is sharded over the ranks in a way that run.wrap and run.track cannot carry:"
            ' take FSDP2, by run.wrap(model, strategy="fsdp") or by fully_shard before run.wrap,'
            " and an ordinary optimizer"
        )


_UNNAMED = {  # types by the module that defines them; without it there is no object of the type
    "torch.distributed.fsdp": "FullyShardedDataParallel",
    "torch.distributed.optim": "ZeroRedundancyOptimizer",
}


def refuse_unnamed(what: str, *things: Any) -> None:
    """Raise ShardedState if one of these has shards of FSDP's first version, or of ZeRO's."""
    found = ((sys.modules.get(module), kind) for module, kind in _UNNAMED.items())
    kinds = tuple(getattr(module, kind) for module, kind in found if hasattr(module, kind))
    if any(isinstance(part, kinds) for thing in things for part in _parts(thing)):
        raise ShardedState(what)


def _parts(thing: Any) -> Iterator[Any]:
    yield thing
    if isinstance(thing, nn.Module):
        yield from thing.modules()


class ForeignModel:
    """A model that is trained without torch, with its optimizer; all of it is equal on every rank.

    In checkpoints its weights are the parameters of a model. `state` has the tensors of the
    optimizer for each weight. Both methods return copies.
    """

    version: tuple[str, str]  # of its framework: name and number

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by name."""
        raise NotImplementedError

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the optimizer's tensors by weight and name."""
        raise NotImplementedError

    def load(
        self, weights: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Continue with these."""
        raise NotImplementedError


class TrackedState:
    """Models, optimizers and other objects with a state, by name.

    Parameters, optimizers and schedulers are equal on every rank; each rank saves a share of them.
    Buffers, scalers and other objects may differ between ranks; each rank saves its own.
    """

    def __init__(self) -> None:
        self.models: dict[str, Wrapped] = {}
        self.divided: dict[str, nn.Module] = {}  # models of which each rank has a part
        self.tracked: dict[str, Any] = {}
        self.outer: dict[str, WeightExchange] = {}  # of models whose weights differ among ranks
        self.foreign: dict[str, ForeignModel] = {}
        self._stepped = True
        self._adds_up = False  # whether gradients of earlier steps count in this one
        self._is_touched = False  # whether an optimizer began to step in this one
        self._counts: tuple[int, ...] = ()  # of schedulers, when it began
        self._alike: frozenset[str] | None = None  # tracked objects that are equal on every rank

    def __bool__(self) -> bool:
        return bool(self.models or self.divided or self.tracked or self.foreign)

    @property
    def has_optimizer(self) -> bool:
        """Tell whether an optimizer is tracked."""
        return any(isinstance(thing, Optimizer) for thing in self.tracked.values())

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of the frameworks of models that are not torch's."""
        return dict(model.version for model in self.foreign.values())

    def optimizers(self) -> list[Optimizer]:
        """Return the tracked optimizers."""
        return [thing for thing in self.tracked.values() if isinstance(thing, Optimizer)]

    def name_of(self, name: str) -> str:
        """Return the name of a new model; without one it is `model`, `model2` and so on."""
        count = len(self.models) + len(self.divided) + 1
        name = name or ("model" if count == 1 else f"model{count}")
        if name in self.modules():
            raise BadTrackedState(f"there is already a model {name!r}: give run.wrap another name")
        return name

    def add_model(self, name: str, model: nn.Module) -> None:
        """Add a model; without a name it gets one."""
        name = self.name_of(name)
        if isinstance(model, Wrapped):
            self.models[name] = model
        else:
            self.divided[name] = model
        self._alike = None

    def modules(self) -> dict[str, nn.Module]:
        """Return all models by name, without DDP."""
        return {**{name: model.module for name, model in self.models.items()}, **self.divided}

    def track(self, things: Mapping[str, Any]) -> None:
        """Add generators, and objects that have `state_dict` and `load_state_dict`."""
        for name, thing in things.items():
            if TrackedGenerator.takes(thing):
                self._track_generator(name, thing)
                continue
            if isinstance(thing, ForeignModel):
                self.foreign[name] = thing
                continue
            if isinstance(thing, Wrapped):
                raise BadTrackedState(f"{name} is wrapped, so it is tracked already: leave it out")
            if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
                raise BadTrackedState(
                    f"{name} is a {type(thing).__name__} without state_dict and load_state_dict:"
                    " give it both, or leave it out"
                )
            if thing in self.divided.values():
                raise BadTrackedState(f"{name} is tracked by run.wrap already: leave it out")
            refuse_unnamed(name, thing)
            if self.tracked.get(name, thing) is not thing:
                raise _taken(name)
            if isinstance(thing, Optimizer) and name not in self.tracked:
                thing.register_step_pre_hook(self._is_stepping)
                thing.register_step_post_hook(self._has_stepped)
            self.tracked[name] = thing
            self._alike = None

    def _track_generator(self, name: str, generator: Any) -> None:
        known = self.tracked.setdefault(name, TrackedGenerator(generator))
        if getattr(known, "generator", None) is not generator:
            raise _taken(name)
        self._alike = None

    def refuse_sharded(self) -> None:
        """Raise ShardedState if something has been sharded since, in a way that is not carried."""
        for name, model in self.models.items():
            refuse_unnamed(name, model.module)
            if any(map(is_divided, model.module.parameters())):  # beneath DDP
                raise ShardedState(name)
        for name, thing in self.tracked.items():
            refuse_unnamed(name, thing)

    def begin_step(self) -> None:
        """Begin to record whether an optimizer steps in this step."""
        self._adds_up = not self._stepped and self.has_optimizer
        self._stepped = self._is_touched = False
        self._counts = self._scheduled()

    def is_whole(self) -> bool:
        """Tell whether no optimizer and no scheduler has stepped in the current step."""
        return not self._is_touched and self._counts == self._scheduled()

    def adds_up(self, is_begun: bool) -> bool:
        """Tell whether gradients of earlier steps count in the current step, or the next one."""
        return self._adds_up if is_begun else not self._stepped and self.has_optimizer

    def drop_gradients(self) -> None:
        """Drop all gradients, before an interrupted step is repeated."""
        for model in self.models.values():
            for _, parameter in _parameters(model):
                parameter.grad = None
        for thing in self.tracked.values():
            if isinstance(thing, Optimizer):
                thing.zero_grad(set_to_none=True)
            elif isinstance(thing, GradScaler) and thing.is_enabled():
                thing._per_optimizer_states.clear()  # else it refuses to unscale again
        self._stepped = True

    def shared(self) -> State:
        """Return the state that is equal on every rank."""
        modules = self.modules().items()
        models: State = {name: dict(module.named_parameters()) for name, module in modules}
        models |= {name: outer.weights() for name, outer in self.outer.items()}
        models |= {name: model.weights() for name, model in self.foreign.items()}
        steps = {name: outer.state() for name, outer in self.outer.items()}
        trained = {
            _optimizer_of(name): {"state": one.state()} for name, one in self.foreign.items()
        }
        return {"models": models, "tracked": self._states(True) | trained, "outer": steps}

    def own(self) -> State:
        """Return the state of this rank alone, with gradients that are accumulated over steps."""
        local = {name: outer.local() for name, outer in self.outer.items()}
        return {**self.own_of_models(), "tracked": self._states(False), "local": local}

    def own_of_models(self) -> State:
        """Return what this rank alone has of the models."""
        modules = self.modules()
        own: State = {
            "buffers": {name: dict(module.named_buffers()) for name, module in modules.items()},
            "shares": {name: model.shares_buffers for name, model in self.models.items()},
        }
        if self.has_optimizer and not self._stepped:
            own["gradients"] = {
                name: {key: p.grad for key, p in module.named_parameters() if p.grad is not None}
                for name, module in modules.items()
            }
        return own

    # For live recovery. A scaler is equal on all ranks, since their gradients are; so is an average
    # of weights.

    def common(self) -> State:
        """Return the state that any peer can send: it is equal on every rank after a step."""
        models = {name: dict(_parameters(model)) for name, model in self.models.items()}
        return {"models": models, "tracked": self._given(True)}

    def private(self) -> State:
        """Return the state that only this rank has."""
        buffers = {name: dict(_buffers(model)) for name, model in self.models.items()}
        shares = {name: model.shares_buffers for name, model in self.models.items()}
        return {"buffers": buffers, "shares": shares, "tracked": self._given(False)}

    def parameters(self) -> list[Tensor]:
        """Return the parameters, which come first in the state that a peer sends."""
        return [part for model in self.models.values() for _, part in _parameters(model)]

    def take_common(self, state: State) -> None:
        """Load the state of a peer."""
        for name, model in self.models.items():
            _fill(name, dict(_parameters(model)), state["models"].get(name))
        self._load(state["tracked"])
        self._alike = frozenset(state["tracked"]) & self.tracked.keys()

    def take_private(self, state: State) -> None:
        """Load state that only one rank had."""
        for name, model in self.models.items():
            _fill(name, dict(_buffers(model)), state["buffers"].get(name))
            model.shares_buffers = state["shares"][name]
        self._load(state["tracked"])

    def _load(self, saved: State) -> None:
        for name, state in saved.items():
            if name in self.tracked:
                self.tracked[name].load_state_dict(state)

    def put_back(self, shared: State, own: State) -> list[str]:
        """Load a checkpoint; return which tracked objects are not in it."""
        for name, module in self.modules().items():
            weights = shared["models"].get(name)
            if name in self.outer and weights is not None:
                self.outer[name].load(weights, shared.get("outer", {}).get(name))
                weights = own.get("local", {}).get(name, weights)
            _fill(name, dict(module.named_parameters()), weights)
            self.put_back_own(name, own)
        saved = {**shared["tracked"], **own["tracked"]}
        for name, foreign in self.foreign.items():
            weights = foreign.weights()
            _fill(name, weights, shared["models"].get(name))
            foreign.load(weights, saved[_optimizer_of(name)]["state"])
        for name, thing in self.tracked.items():
            if name in saved:
                thing.load_state_dict(saved[name])
        self.has_put_back(own)
        return [f"{name} is not in the checkpoint" for name in self.tracked if name not in saved]

    def put_back_own(self, name: str, own: State) -> None:
        """Load what this rank alone had of a model: buffers, and accumulated gradients."""
        module = self.modules()[name]
        here, there = dict(module.named_buffers()), own["buffers"].get(name)
        if there is not None and name in self.divided:  # a stage has some of them only
            there = {key: there[key] for key in here if key in there}
        _fill(name, here, there)
        if name in self.models:
            self.models[name].shares_buffers = own["shares"].get(name, True)
        gradients = own.get("gradients", {}).get(name, {})
        for key, parameter in module.named_parameters():
            kept = gradients.get(key)
            if kept is not None and is_divided(parameter):
                kept = divided_like(parameter, kept)
            parameter.grad = None if kept is None else kept.to(parameter.device)

    def has_put_back(self, own: State) -> None:
        """Note whether a step has to be completed with gradients that were accumulated before."""
        self._stepped = "gradients" not in own

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of models and optimizers, by name."""
        for name, module in self.modules().items():
            for key, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield f"{name}.{key}", tensor
        for name, thing in self.tracked.items():
            if isinstance(thing, Optimizer):
                for at, state in thing.state_dict()["state"].items():
                    for key, tensor in state.items():
                        if isinstance(tensor, Tensor):
                            yield f"{name}.{at}.{key}", tensor
        for name, foreign in self.foreign.items():
            yield from ((f"{name}.{key}", tensor) for key, tensor in foreign.weights().items())
            for at, state in foreign.state().items():
                yield from (
                    (f"{_optimizer_of(name)}.{at}.{key}", tensor) for key, tensor in state.items()
                )

    def devices(self) -> set[str]:
        """Return the device types of the models."""
        parts = (part for module in self.modules().values() for part in module.parameters())
        return {part.device.type for part in parts}

    def _states(self, shared: bool) -> State:
        return {
            name: plain(thing.state_dict())
            for name, thing in self.tracked.items()
            if isinstance(thing, LRScheduler if self.outer else Optimizer | LRScheduler) is shared
        }

    def _given(self, by_peers: bool) -> State:
        """Return the tracked states that are equal on all ranks, or those that are not."""
        if self._alike is None:
            self._alike = frozenset(name for name in self.tracked if self._is_alike(name))
        names = [name for name in self.tracked if (name in self._alike) is by_peers]
        return {name: plain(self.tracked[name].state_dict()) for name in names}

    def _is_alike(self, name: str) -> bool:
        thing = self.tracked[name]
        models = ([p for _, p in _parameters(model)] for model in self.models.values())
        return isinstance(thing, _COMMON) or is_average(plain(thing.state_dict()), models)

    def _scheduled(self) -> tuple[int, ...]:
        """Return the step count of each scheduler; a sequential scheduler has none of its own."""
        found = [one for one in self.tracked.values() if isinstance(one, LRScheduler)]
        return tuple([getattr(one, "last_epoch", 0) for one in found])

    def _is_stepping(self, *_: Any) -> None:
        self._is_touched = True

    def _has_stepped(self, *_: Any) -> None:
        self._stepped = True


def _parameters(model: Wrapped) -> Iterator[tuple[str, Tensor]]:
    return iter(model.module.named_parameters())


def _buffers(model: Wrapped) -> Iterator[tuple[str, Tensor]]:
    return iter(model.module.named_buffers())


def _optimizer_of(name: str) -> str:
    return f"{name}.optimizer"


def _taken(name: str) -> BadTrackedState:
    return BadTrackedState(f"another object is tracked as {name!r}: choose another name")


def _fill(name: str, there: Mapping[str, Tensor], saved: Mapping[str, Tensor] | None) -> None:
    """Copy into the existing tensors, to which optimizers and DDP hold references."""
    if saved is None:
        raise OtherProgram(f"the checkpoint has no model {name!r}: start a new run")
    if there.keys() != saved.keys():
        odd = ", ".join(sorted(there.keys() ^ saved.keys())[:3])
        raise OtherProgram(f"the checkpoint has another {name}: {odd} differ; start a new run")
    with torch.no_grad():
        for key, tensor in there.items():
            if tensor.shape != saved[key].shape:
                shapes = f"{tuple(saved[key].shape)} saved, {tuple(tensor.shape)} here"
                raise OtherProgram(f"{name}.{key} has another shape: {shapes}; start a new run")
            if saved[key] is not tensor:  # else the transfer has filled it
                tensor.copy_(saved[key])
