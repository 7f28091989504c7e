"""torchLoom: describe a job once, run it anywhere, watch it, change it, lose nothing."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchloom.runner.api import Runner, get_runner

__version__ = "0.1.0"
__all__ = ["Runner", "get_runner"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchloom.runner import api

    return getattr(api, name)
