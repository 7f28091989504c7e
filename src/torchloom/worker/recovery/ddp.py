"""DDP objects of a trainer, which are made again in place: its loop holds them in variables.

The arguments of each are noted when it is made. It is imported before the program's first line,
so it imports almost nothing.
"""

from __future__ import annotations

import functools
import sys

from torchloom.worker.threadlet.import_hook import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_MODULE = "torch.nn.parallel.distributed"
_NOTED = "_loom_arguments"
_GROUPS = ("process_group", "device_mesh")
_HOLDS_GROUP = ("reducer", "logger", *_GROUPS)
_KEPT = ("training", "require_backward_grad_sync", "require_forward_param_sync")


def watch() -> None:
    """Note the arguments of every DDP that the program makes; to be called before it starts."""
    when_imported(_MODULE, _take_over)


def why_fixed(model: Any) -> str:
    """Return why a model is not a DDP that can be made again; empty if it is one."""
    module = sys.modules.get(_MODULE)
    if module is None or type(model) is not module.DistributedDataParallel:
        return "its model is not in a DistributedDataParallel"
    if _NOTED not in model.__dict__:
        return "it is not known how its DistributedDataParallel was made"
    _, arguments = model.__dict__[_NOTED]
    if any(arguments.get(name) is not None for name in _GROUPS):
        return "its DistributedDataParallel has a group of its own"
    if model._comm_hooks:
        return "its DistributedDataParallel has a communication hook"
    return "its DistributedDataParallel has a static graph" if model.static_graph else ""


class RemadeDdp:
    """A DDP object whose group can be replaced; `Wrapped` is the same for the API."""

    def __init__(self, ddp: Any) -> None:
        self.module = ddp.module
        self.is_steady = False  # whether the buckets of an undisturbed one have their last layout
        self._ddp = ddp
        self._dropped: dict[str, Any] | None = None  # its attributes, until it is made again

    @property
    def shares_buffers(self) -> bool:
        """Whether the next pass begins with rank 0's buffers."""
        return bool(self._ddp.__dict__["require_forward_param_sync"])

    @shares_buffers.setter
    def shares_buffers(self, shares: bool) -> None:
        self._ddp.__dict__["require_forward_param_sync"] = shares

    def drop(self) -> None:
        """Drop what holds the group; the object is useless until it is made again."""
        if self._dropped is None:
            for name in _HOLDS_GROUP:
                self._ddp.__dict__.pop(name, None)
            self._dropped = dict(self._ddp.__dict__)

    def rebuild(self, sync: bool = False) -> None:
        """Make it again for the current group; attributes that are not DDP's own are kept."""
        self.drop()
        before, self._dropped = self._dropped or {}, None
        positional, arguments = before[_NOTED]
        self._ddp.__dict__.clear()
        type(self._ddp).__init__(self._ddp, *positional, **{**arguments, "init_sync": sync})
        made = self._ddp.__dict__
        made.update({name: value for name, value in before.items() if name not in made})
        made.update({name: before[name] for name in _KEPT})
        if self.is_steady:
            self._prime_first()

    def prime(self, ddp: Any, args: Any, kwargs: Any) -> None:
        """Run the passes that fix the layout of the buckets."""
        from torchloom.worker.run.wrap import prime

        prime(ddp, args, kwargs)

    def _prime_first(self) -> None:
        """Have the first training pass preceded by those that fix the layout of the buckets."""
        import torch

        def before(ddp: Any, args: Any, kwargs: Any) -> None:
            if ddp.module.training and torch.is_grad_enabled():
                hook.remove()
                self.prime(ddp, args, kwargs)

        hook = self._ddp.register_forward_pre_hook(before, with_kwargs=True)


def _take_over(module: ModuleType) -> None:
    kind: Any = module.DistributedDataParallel
    torchs = kind.__init__

    @functools.wraps(torchs)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        torchs(self, *args, **kwargs)
        self.__dict__[_NOTED] = args, kwargs

    kind.__init__ = noted
