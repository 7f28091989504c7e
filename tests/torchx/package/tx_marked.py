"""Plugins as TorchX finds them below `torchx_plugins`: marked functions."""

from typing import Any

from torchx.plugins import powers_of_two_gpus, register
from torchx.specs import Resource


@register.named_resource(aliases=["box"], fractionals=powers_of_two_gpus)
def crate(fractional: float = 1.0) -> Resource:
    return Resource(int(32 * fractional), int(4 * fractional), int(1024 * fractional))


@register.scheduler(name="elsewhere")
def misplaced(session_name: str, **kwargs: Any) -> Any: ...
