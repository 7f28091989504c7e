"""How to reach a plane: this user's own by its sockets, another one by HTTP."""

TYPE_CHECKING = False  # a command line imports this first
if TYPE_CHECKING:
    from torchloom.client.http import Client, Refused

__all__ = ["Client", "Refused"]


def __getattr__(name: str) -> object:
    """Import the HTTP client when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchloom.client import http

    return getattr(http, name)
