"""The one way to plan and submit: `get_runner()`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchloom.runner.api import Runner, get_runner

__all__ = ["Runner", "get_runner"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchloom.runner import api

    return getattr(api, name)
