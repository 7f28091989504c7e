"""What things are: apps, roles, resources, states, handles, options. Plain data and pure functions.

Names, fields and meanings are those of `torchx.specs`, so a program changes its import and no more.
All of them are in `api`, but for two that turn a function into an app. Nothing is imported before
it is asked for: a job agent and a keeper need `dataclass` and `states` alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchloom.specs.api import *  # noqa: F403
    from torchloom.specs.builders import materialize_appdef as materialize_appdef
    from torchloom.specs.builders import parse_mounts as parse_mounts

_BUILT = ("materialize_appdef", "parse_mounts")


def __getattr__(name: str) -> Any:
    """Look a name up where it is made; `import *` asks for `__all__` like for any other."""
    api = import_module("torchloom.specs.api")
    if name == "__all__":
        return [*_BUILT, *api.__all__]
    if name in _BUILT:
        return getattr(import_module("torchloom.specs.builders"), name)
    if name in api.__all__:
        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
