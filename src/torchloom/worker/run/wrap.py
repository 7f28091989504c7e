"""A model with data-parallel training whose DDP can be dropped and rebuilt.

Also how tensors in nested containers are found and replaced.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchloom.errors import UserError
from torchloom.worker import environment
from torchloom.worker.run.rng import RngSource

if TYPE_CHECKING:
    from torchloom.worker.run.exchange import GradientExchange, PlannedMean

PASSES = 2
_SYNC = "require_backward_grad_sync"
_OWN = ("training", "shares_buffers", _SYNC, "_joined", "_options", "_is_primed", "_exchange")


def prime(model: DistributedDataParallel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run forward and backward passes that only fix the layout of DDP's buckets.

    DDP lays its buckets out anew after the first iteration, which changes the rounding of sums.
    Buffers, gradients and RNG state are restored.
    """
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
    """Run one pass on copies of the inputs, whose own graph is still needed."""
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
    """There are several ranks, and no process group."""

    code = "no_group"

    def __init__(self) -> None:
        super().__init__(
            "no process group: call torch.distributed.init_process_group() before run.wrap()"
        )


class Wrapped(nn.Module):
    """A model whose forward pass uses DDP if there are other ranks; created by `run.wrap`.

    Attributes, parameters, buffers and state dict are those of the model, under its own names.
    """

    module: nn.Module
    _joined: DistributedDataParallel | None
    _exchange: "GradientExchange | PlannedMean | None"
    _is_local: bool

    def __init__(
        self,
        module: nn.Module,
        options: Mapping[str, Any],
        sync: bool,
        exchange: "GradientExchange | PlannedMean | None" = None,
        is_local: bool = False,
    ) -> None:
        super().__init__()
        self.__dict__["_is_local"] = is_local  # its gradients are not exchanged
        self.__dict__["_exchange"] = exchange
        self.__dict__["module"] = module  # not a submodule, so that names have no prefix
        self.__dict__["_options"] = dict(options)
        self.__dict__["training"] = module.training
        self.__dict__["_joined"] = None
        self.__dict__["_training_forward_hook"] = None
        self.rebuild(sync)

    def rebuild(self, sync: bool = False) -> None:
        """Drop DDP and build it for the current process group.

        With `sync`, every rank gets rank 0's weights; without, they must be equal already.
        """
        shares = self.shares_buffers
        self._joined = None  # first, since it holds buckets and sockets
        self._is_primed = False
        self._joined = None if self._is_local else _join(self.module, self._options, sync)
        if self._joined is not None and self._exchange is not None:
            # torch takes a hook without annotations only, unless they are its own
            self._joined.register_comm_hook(self._exchange, lambda it, bucket: it.exchanged(bucket))
        self.shares_buffers = shares

    def drop(self) -> None:
        """Drop DDP, before the process group is left."""
        self._joined = None
        self._is_primed = False
        if self._exchange is not None:
            self._exchange.drop()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; DDP is primed before the first training pass."""
        joined = self._joined
        if joined is None:
            return self.module(*args, **kwargs)
        if not self._is_primed and self.module.training and torch.is_grad_enabled():
            self._is_primed = True
            with self._idle():
                prime(joined, args, kwargs)
        outputs = joined(*args, **kwargs)
        hook = self._training_forward_hook
        if hook is not None and self.module.training and torch.is_grad_enabled():
            hook()
        return outputs

    @contextlib.contextmanager
    def _idle(self) -> Iterator[None]:
        """Exchange gradients in this block that are thrown away."""
        exchange = self._exchange
        if exchange is None:
            yield
            return
        exchange.is_idle = True
        try:
            yield
        finally:
            exchange.is_idle = False

    def register_training_forward_hook(self, hook: Callable[[], None]) -> None:
        """Call `hook` after each training forward pass, before backward; it replaces another."""
        self.__dict__["_training_forward_hook"] = hook

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients in this block without averaging them over the ranks."""
        with self._joined.no_sync() if self._joined is not None else contextlib.nullcontext():
            yield

    @property
    def require_backward_grad_sync(self) -> bool:
        """DDP's switch: whether the next backward pass averages gradients over the ranks."""
        return self._joined is None or bool(self._joined.require_backward_grad_sync)

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, syncs: bool) -> None:
        if self._joined is not None:
            self._joined.require_backward_grad_sync = syncs

    @property
    def shares_buffers(self) -> bool:
        """Whether the next pass begins with rank 0's buffers; not after a pass in `no_sync`."""
        return self._joined is None or bool(self._joined.require_forward_param_sync)

    @shares_buffers.setter
    def shares_buffers(self, shares: bool) -> None:
        if self._joined is not None:
            self._joined.require_forward_param_sync = shares

    # Everything else is forwarded to the model.

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
        return copy.deepcopy(self.module, memo)  # a copy takes no part in DDP

    def __repr__(self) -> str:
        return repr(self.module)

    def train(self, mode: bool = True) -> "Wrapped":
        """Set training or evaluation mode."""
        self.training = mode
        (self._joined if self._joined is not None else self.module).train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> "Wrapped":
        """Call a function with every submodule."""
        self.module.apply(fn)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Wrapped":
        before = _layout(self.module)
        self.module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if _layout(self.module) != before:
            self.rebuild()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's state dict."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model's state dict."""
        return self.module.load_state_dict(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's modules; `parameters` and `buffers` use this."""
        return self.module.named_modules(*args, **kwargs)

    def named_children(self) -> Any:
        """Return the model's children."""
        return self.module.named_children()

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Register a buffer of the model."""
        self.module.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Register a parameter of the model."""
        self.module.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """Add a child of the model."""
        self.module.add_module(*args, **kwargs)


def _join(
    module: nn.Module, options: Mapping[str, Any], sync: bool
) -> DistributedDataParallel | None:
    """Return DDP for the current ranks, or None for a process without peers."""
    if not dist.is_available() or not dist.is_initialized():
        if int(environment.text("WORLD_SIZE") or 1) > 1:
            raise NoGroup()
        return None
    given = [each for each in module.parameters() if each.requires_grad]
    if dist.get_world_size() == 1 or not given:
        return None
    device = given[0].device
    ids = None if device.type == "cpu" else [device]
    arguments = {"device_ids": ids, "init_sync": sync, **options}
    return DistributedDataParallel(module, **arguments)


def _layout(module: nn.Module) -> list[tuple[int, torch.device, torch.dtype]]:
    return [(id(each), each.device, each.dtype) for each in module.parameters()]


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in containers and data classes."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))


def replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the containers with each tensor replaced; other objects are kept."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is dict:
        return {key: replaced(part, change) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replaced(part, change) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(part, change) for part in value))
    return value


def plain(value: Any) -> Any:
    """Return a state with every mapping converted to a dict; other values are kept."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(part) for part in value)
    return value
