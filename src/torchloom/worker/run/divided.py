"""State of which each rank holds a part: taken for a checkpoint, and put back on any mesh.

Parameters and optimizer states are named after parameters, not counted: the ranks of another mesh
find what they need by these names. Everything else is saved as in `tracked_state`.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchloom.worker.run.parts import (
    NotOnMesh,
    Parts,
    RankMesh,
    StoredTensors,
    box_of,
    divided_like,
    is_divided,
    local_of,
    mesh_of_all,
    taken,
)
from torchloom.worker.run.tracked_state import OtherProgram, State, TrackedState
from torchloom.worker.run.wrap import plain

if TYPE_CHECKING:
    from torchloom.worker.saving.loader import Loaded

_PART = "<part>"  # the key of what stands for a divided tensor in a state


def settle(modules: Iterable[nn.Module]) -> None:
    """Have FSDP free the whole parameters that an evaluation has left gathered."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", ())
    for part in (each for module in modules for each in module.modules()):
        if isinstance(part, kind):
            part.reshard()


def mesh_of(things: TrackedState, rank: int, world_size: int) -> RankMesh | None:
    """Return the mesh of tracked state that the program has divided itself; None without any."""
    settle(things.modules().values())
    tensors = (tensor for _, tensor in _parameters(things))
    found = next(filter(is_divided, tensors), None)
    for thing in things.tracked.values():
        if found is None and isinstance(thing, Optimizer):
            given = (each for group in thing.param_groups for each in group["params"])
            found = next(filter(is_divided, given), None)
        elif found is None and isinstance(thing, nn.Module):
            found = next(filter(is_divided, thing.parameters()), None)
    return None if found is None else mesh_of_all(found, rank, world_size)


def names_of(things: TrackedState) -> dict[str, list[str]]:
    """Return the names of each optimizer's parameters, in the order of its state dict."""
    known = {id(parameter): name for name, parameter in _parameters(things)}
    for name, thing in things.tracked.items():
        if isinstance(thing, nn.Module):
            for key, parameter in thing.named_parameters():
                known.setdefault(id(parameter), f"{name}.{key}")
    return {
        name: _names(thing, known)
        for name, thing in things.tracked.items()
        if isinstance(thing, Optimizer)
    }


def _names(optimizer: Optimizer, known: Mapping[int, str]) -> list[str]:
    given = [each for group in optimizer.param_groups for each in group["params"]]
    return [known.get(id(each), str(at)) for at, each in enumerate(given)]


def _parameters(things: TrackedState) -> Iterator[tuple[str, Tensor]]:
    for name, module in things.modules().items():
        yield from ((f"{name}.{key}", each) for key, each in module.named_parameters())


# Taking it.


def take(things: TrackedState, mesh: RankMesh) -> tuple[State, State, Parts]:
    """Return the state that is equal on all ranks, that of this rank, and its parts of tensors."""
    settle(things.modules().values())
    named = {f"models.{name}": each for name, each in _parameters(things)}
    shared: State = {"models": {}, "tracked": {}}
    own: State = {**things.own_of_models(), "tracked": {}, "values": {}}
    names = names_of(things)
    for name, thing in things.tracked.items():
        if isinstance(thing, Optimizer):
            shared["tracked"][name] = _groups_of(thing)
            own["values"][name] = _take_optimizer(name, thing, names[name], named)
        elif isinstance(thing, LRScheduler):
            shared["tracked"][name] = plain(thing.state_dict())
        else:
            own["tracked"][name] = _without_parts(plain(thing.state_dict()), name, named)
    if "gradients" in own:
        own["gradients"] = {
            name: {key: local_of(each) for key, each in found.items()}
            for name, found in own["gradients"].items()
        }
    return shared, own, taken(mesh, named)


def _groups_of(optimizer: Optimizer) -> State:
    groups = plain(optimizer.state_dict()["param_groups"])
    return {"param_groups": [{**group, "params": len(group["params"])} for group in groups]}


def _take_optimizer(
    name: str, optimizer: Optimizer, names: list[str], named: dict[str, Tensor]
) -> State:
    """Add the tensors of an optimizer to those that are named; return its other values."""
    values: State = {}
    for at, state in plain(optimizer.state_dict()["state"]).items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                named[f"tracked.{name}.{names[at]}.{key}"] = value
            else:
                values.setdefault(names[at], {})[key] = value
    return values


def _without_parts(state: Any, path: str, named: dict[str, Tensor]) -> Any:
    """Return a state with divided tensors replaced by their names, under which they are added."""
    if is_divided(state):
        name = f"tracked.{path}"
        if name in named:
            raise NotOnMesh(path, "another divided tensor has this name")
        named[name] = state
        return {_PART: name}
    if isinstance(state, dict):
        return {key: _without_parts(each, f"{path}.{key}", named) for key, each in state.items()}
    if type(state) in (list, tuple):
        items = (_without_parts(each, f"{path}.{at}", named) for at, each in enumerate(state))
        return type(state)(items)
    return state


# Putting it back.


def put_back(things: TrackedState, loaded: "Loaded", mesh: RankMesh | None) -> list[str]:
    """Load a checkpoint of any mesh; return which tracked objects are not in it."""
    settle(things.modules().values())
    stored = loaded.parts or _of_whole(things, loaded.shared)
    own = dict(loaded.own) if loaded.exact_world else _merged(loaded)
    for name, module in things.modules().items():
        _fill_model(name, module, stored, mesh)
        things.put_back_own(name, own)
    saved = {**loaded.shared["tracked"], **own["tracked"]}
    for name, thing in things.tracked.items():
        if name not in saved:
            continue
        if isinstance(thing, Optimizer):
            values = own.get("values", {}).get(name, {})
            names = names_of(things)[name]
            state = _optimizer_state(name, thing, names, stored, mesh)
            for at, each in enumerate(names):
                if each in values:
                    state.setdefault(at, {}).update(values[each])
            thing.load_state_dict(
                {"state": state, "param_groups": _groups(name, thing, saved[name])}
            )
        else:
            now = thing.state_dict() if _has_parts(saved[name]) else None
            thing.load_state_dict(_with_parts(saved[name], now, stored, mesh))
    things.has_put_back(own)
    return [f"{name} is not in the checkpoint" for name in things.tracked if name not in saved]


def _merged(loaded: "Loaded") -> State:
    """Return the own state for a rank of another mesh: rank 0's, and what other ranks have more.

    Each stage of a pipeline has buffers of its own.
    """
    first = dict(loaded.own)
    for key in ("buffers", "values"):
        found: dict[str, dict[str, Any]] = {}
        for own in loaded.owns():
            for name, more in own.get(key, {}).items():
                known = found.setdefault(name, {})
                known.update({each: more[each] for each in more if each not in known})
        first[key] = found
    first.pop("gradients", None)
    return first


def _of_whole(things: TrackedState, shared: State) -> StoredTensors:
    """Return the tensors of a checkpoint whose ranks held everything, by the names used here."""
    named = {
        f"models.{name}.{key}": tensor
        for name, tensors in shared["models"].items()
        for key, tensor in tensors.items()
    }
    for name, here in names_of(things).items():
        names = shared.get("names", {}).get(name, here)
        for at, state in (shared["tracked"].get(name) or {}).get("state", {}).items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    named[f"tracked.{name}.{names[at]}.{key}"] = value
    return StoredTensors.of_whole(named)


def _fill_model(
    model: str, module: nn.Module, stored: StoredTensors, mesh: RankMesh | None
) -> None:
    here = dict(module.named_parameters())
    there = set(stored.names(f"models.{model}."))
    odd = here.keys() - there if mesh is not None and mesh.at else here.keys() ^ there
    if not there:
        raise OtherProgram(f"the checkpoint has no model {model!r}: start a new run")
    if odd:
        few = ", ".join(sorted(odd)[:3])
        raise OtherProgram(f"the checkpoint has another {model}: {few} differ; start a new run")
    for key, tensor in here.items():
        name = f"models.{model}.{key}"
        if tuple(tensor.shape) != stored.shape(name):
            shapes = f"{stored.shape(name)} saved, {tuple(tensor.shape)} here"
            raise OtherProgram(f"{model}.{key} has another shape: {shapes}; start a new run")
        stored.fill(name, local_of(tensor), box_of(tensor, mesh))


def _optimizer_state(
    name: str,
    optimizer: Optimizer,
    names: list[str],
    stored: StoredTensors,
    mesh: RankMesh | None,
) -> dict[int, State]:
    """Return the tensors of an optimizer's state, by number; divided as its parameters are."""
    given = [each for group in optimizer.param_groups for each in group["params"]]
    found: dict[int, State] = {}
    for at, (each, parameter) in enumerate(zip(names, given, strict=True)):
        prefix = f"tracked.{name}.{each}."
        state = {
            key: _part(f"{prefix}{key}", parameter, stored, mesh) for key in stored.names(prefix)
        }
        if state:
            found[at] = state
    return found


def _part(name: str, like: Tensor, stored: StoredTensors, mesh: RankMesh | None) -> Tensor:
    """Return this rank's part of a stored tensor, divided as another one if that has its shape."""
    if not is_divided(like) or stored.shape(name) != tuple(like.shape):
        return stored.whole(name)
    part = stored.part(name, box_of(like, mesh))
    return divided_like(like, part.to(local_of(like).device))


def _groups(name: str, optimizer: Optimizer, saved: State) -> list[State]:
    """Return the saved groups of parameters, with the numbers that parameters have here."""
    here = optimizer.state_dict()["param_groups"]
    there = saved["param_groups"]
    if len(here) != len(there):
        raise OtherProgram(
            f"{name} has {len(here)} groups of parameters, and {len(there)} in the checkpoint"
        )
    both = zip(there, here, strict=True)
    return [{**group, "params": mine["params"]} for group, mine in both]


def _has_parts(state: Any) -> bool:
    if isinstance(state, dict):
        return _PART in state or any(map(_has_parts, state.values()))
    return type(state) in (list, tuple) and any(map(_has_parts, state))


def _with_parts(state: Any, now: Any, stored: StoredTensors, mesh: RankMesh | None) -> Any:
    """Return a state with its divided tensors, each divided as the one that is there now."""
    if isinstance(state, dict):
        if state.keys() == {_PART}:
            return _part(state[_PART], now, stored, mesh) if isinstance(now, Tensor) else None
        found = {key: _at(now, key) for key in state}
        return {key: _with_parts(each, found[key], stored, mesh) for key, each in state.items()}
    if type(state) in (list, tuple):
        items = (_with_parts(each, _at(now, at), stored, mesh) for at, each in enumerate(state))
        return type(state)(items)
    return state


def _at(state: Any, key: Any) -> Any:
    try:
        return state[key]
    except (KeyError, IndexError, TypeError):
        return None
