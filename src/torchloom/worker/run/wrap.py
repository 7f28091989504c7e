"""A model that all ranks train together, and whose DDP can be dropped and built anew."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchloom.errors import UserError
from torchloom.worker import environment
from torchloom.worker.run.nested import replaced, tensors
from torchloom.worker.run.rng import RngSource

PASSES = 2
_OWN = ("training", "shares_buffers", "_joined", "_options", "_is_primed")


def prime(model: DistributedDataParallel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Go forth and back with these inputs, and leave no trace but the layout of the buckets."""
    rng = RngSource()
    buffers = [(each, each.detach().clone()) for each in model.module.buffers()]
    gradients = [(each, each.grad) for each in model.module.parameters()]
    synced, model.require_backward_grad_sync = model.require_backward_grad_sync, True
    shares = model.require_forward_param_sync
    try:
        for _ in range(PASSES):
            _forget(model)
            _pass(model, args, kwargs)
    finally:
        model.require_backward_grad_sync = synced
        model.require_forward_param_sync = shares
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
        rng.put_back()


def _pass(model: DistributedDataParallel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take copies of the inputs: whatever made them has a graph of its own, still to be used."""
    outputs = model(*replaced(args, _copy), **replaced(kwargs, _copy))
    sums = [each.sum() for each in tensors(outputs) if each.requires_grad]
    if sums:
        torch.autograd.backward(sums)
    torch.clear_autocast_cache()  # the weights cast in this pass belong to its graph


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _forget(model: DistributedDataParallel) -> None:
    for parameter in model.module.parameters():
        parameter.grad = None


class NoGroup(UserError):
    """Ranks that are to train one model have not met."""

    code = "no_group"

    def __init__(self) -> None:
        super().__init__(
            "the ranks have not met: call torch.distributed.init_process_group() before run.wrap()"
        )


class Wrapped(nn.Module):
    """The model itself, but for its forward pass, which goes through DDP where there are peers.

    What is looked up, set, listed, saved and loaded is the model's own, by its own names.
    """

    module: nn.Module
    _joined: DistributedDataParallel | None

    def __init__(self, module: nn.Module, options: Mapping[str, Any], sync: bool) -> None:
        super().__init__()
        self.__dict__["module"] = module  # not a part of this module: names stay the model's own
        self.__dict__["_options"] = dict(options)
        self.__dict__["training"] = module.training
        self.__dict__["_joined"] = None
        self.__dict__["_training_forward_hook"] = None
        self.rebuild(sync)

    def rebuild(self, sync: bool = False) -> None:
        """Drop what joins the ranks and build it for the group there is now.

        With `sync` every rank gets rank 0's weights; without, they are known to be equal.
        """
        shares = self.shares_buffers
        self._joined = None  # the old one first: it holds buckets and sockets
        self._is_primed = False
        self._joined = _join(self.module, self._options, sync)
        self.shares_buffers = shares

    def drop(self) -> None:
        """Let go of what joins the ranks: their group is left."""
        self._joined = None
        self._is_primed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute; the first pass that trains is primed."""
        joined = self._joined
        if joined is None:
            return self.module(*args, **kwargs)
        if not self._is_primed and self.module.training and torch.is_grad_enabled():
            self._is_primed = True
            prime(joined, args, kwargs)
        outputs = joined(*args, **kwargs)
        hook = self._training_forward_hook
        if hook is not None and self.module.training and torch.is_grad_enabled():
            hook()
        return outputs

    def register_training_forward_hook(self, hook: Callable[[], None]) -> None:
        """Call `hook` after each training forward pass, before backward; it replaces another."""
        self.__dict__["_training_forward_hook"] = hook

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of this block to oneself, to add them up over several passes."""
        with self._joined.no_sync() if self._joined is not None else contextlib.nullcontext():
            yield

    @property
    def shares_buffers(self) -> bool:
        """Tell whether the next pass begins with rank 0's buffers: not after one without sync."""
        return self._joined is None or bool(self._joined.require_forward_param_sync)

    @shares_buffers.setter
    def shares_buffers(self, shares: bool) -> None:
        if self._joined is not None:
            self._joined.require_forward_param_sync = shares

    # What belongs to the model.

    def __getattr__(self, name: str) -> Any:
        if "module" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(self.module, memo)  # a copy is nobody's peer

    def __repr__(self) -> str:
        return repr(self.module)

    def train(self, mode: bool = True) -> "Wrapped":
        """Train or evaluate."""
        self.training = mode
        (self._joined if self._joined is not None else self.module).train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> "Wrapped":
        """Call a function with every module."""
        self.module.apply(fn)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Wrapped":
        before = _layout(self.module)
        self.module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if _layout(self.module) != before:
            self.rebuild()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model's own."""
        return self.module.load_state_dict(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own; parameters and buffers are looked for there too."""
        return self.module.named_modules(*args, **kwargs)

    def named_children(self) -> Any:
        """Return the model's own."""
        return self.module.named_children()

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Give the model a buffer."""
        self.module.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Give the model a parameter."""
        self.module.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """Give the model a part."""
        self.module.add_module(*args, **kwargs)


def _join(
    module: nn.Module, options: Mapping[str, Any], sync: bool
) -> DistributedDataParallel | None:
    """Return DDP for the ranks there are; a process without peers needs none."""
    if not dist.is_available() or not dist.is_initialized():
        if int(environment.text("WORLD_SIZE") or 1) > 1:
            raise NoGroup()
        return None
    given = [each for each in module.parameters() if each.requires_grad]
    if dist.get_world_size() == 1 or not given:
        return None
    device = given[0].device
    ids = None if device.type == "cpu" else [device]
    told = {"device_ids": ids, "init_sync": sync, **options}
    return DistributedDataParallel(module, **told)


def _layout(module: nn.Module) -> list[tuple[int, torch.device, torch.dtype]]:
    return [(id(each), each.device, each.dtype) for each in module.parameters()]
