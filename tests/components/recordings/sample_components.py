"""Components as an author writes them for TorchX, in old hints and in new ones."""

# ruff: noqa: UP006, UP035, UP045 - the old hints are the point

from typing import Annotated, Dict, List, Optional

import torchx.specs as specs
from torchx.specs import macros


def old_hints(
    name: str,
    count: int = 1,
    ratio: float = 0.5,
    flag: bool = False,
    labels: Optional[Dict[str, str]] = None,
    sizes: Optional[List[int]] = None,
    note: Optional[str] = None,
) -> specs.AppDef:
    """Everything in the old spelling.

    Args:
        name: what it is called
        count: how many
    """
    return _app(name, count, ratio, flag, labels, sizes, note)


def new_hints(
    name: str,
    *words: str,
    count: int = 1,
    ratio: float = 0.5,
    flag: bool = True,
    labels: dict[str, str] | None = None,
    sizes: list[int] | None = None,
    weights: dict[str, int] | None = None,
    note: str | None = None,
    k: str = "one letter",
    config_name: Annotated[str, "-cn"] = "base",
) -> specs.AppDef:
    """Everything in the new spelling.

    Args:
        name: what it is called
        words: the rest
    """
    return _app(name, *words, count, ratio, flag, labels, sizes, weights, note, k, config_name)


def _app(name: str, *values: object) -> specs.AppDef:
    role = specs.Role(
        name="main",
        image=specs.MISSING,
        entrypoint="run",
        args=[macros.app_id, *map(repr, values)],
        resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
        retry_policy=specs.RetryPolicy.REPLICA,
    )
    return specs.AppDef(name=name, roles=[role])
