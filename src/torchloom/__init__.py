"""torchLoom: describe a job once, run it anywhere, watch it, change it, lose nothing."""

TYPE_CHECKING = False  # importing `typing` takes longer than all the rest of a rank's start
if TYPE_CHECKING:
    from typing import Any

    from torchloom.runner.api import Runner, get_runner
    from torchloom.worker.run.run import Run, init

__version__ = "0.1.0"
__all__ = ["Run", "Runner", "get_runner", "init"]


def __getattr__(name: str) -> "Any":
    """Import what is asked for, when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Run", "init"):
        from torchloom.worker.run import run

        return getattr(run, name)
    from torchloom.runner import api

    return getattr(api, name)


def __dir__() -> "list[str]":
    """List the public names, though they are imported when they are asked for."""
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING"})
