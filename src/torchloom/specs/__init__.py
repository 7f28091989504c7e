"""What things are: apps, roles, resources, states, handles, options. Plain data and pure functions.

Names, fields and meanings are those of `torchx.specs`, so a program changes its import and no more.
All of them are in `api`, but for two that turn a function into an app.
"""

from typing import TYPE_CHECKING, Any

from torchloom.specs import api

if TYPE_CHECKING:
    from torchloom.specs.api import *  # noqa: F403
    from torchloom.specs.builders import materialize_appdef, parse_mounts

__all__ = ["materialize_appdef", "parse_mounts"]
__all__ += api.__all__


def __getattr__(name: str) -> Any:
    """Look a name up where it is made; what is slow to import is imported only then."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in api.__all__:
        return getattr(api, name)
    from torchloom.specs import builders

    return getattr(builders, name)
