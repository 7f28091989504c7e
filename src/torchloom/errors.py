"""What can go wrong, as one tree.

    LoomError
    ├── UserError            the request is wrong: exit code 2, the message names the remedy
    │   ├── NotFound         a name that nothing has, with the nearest one that exists
    │   └── Ambiguous        a name that several things have
    └── Failure              the request was right and could not be done: exit code 1
        └── MissingExtra     a package that is installed on request is not there

A door maps these classes to an exit code or an HTTP status, once. `code` is what machines match.
"""

from collections.abc import Iterable


class LoomError(Exception):
    """Anything torchloom reports by a message instead of a traceback."""

    code = "error"
    exit_code = 1


class UserError(LoomError):
    """The request itself is wrong; the message names what to change."""

    code = "user_error"
    exit_code = 2


class Failure(LoomError):
    """The request was right, but could not be carried out."""

    code = "failure"
    exit_code = 1


class MissingExtra(Failure):
    """A package that only some installations need is not installed."""

    code = "missing_extra"

    def __init__(self, purpose: str, package: str, extra: str, otherwise: str = "") -> None:
        remedy = f"run pip install 'torchloom[{extra}]'{f', or {otherwise}' if otherwise else ''}"
        super().__init__(f"{purpose} needs {package}, which is not installed: {remedy}")


def require_extra(purpose: str, package: str, extra: str, otherwise: str = "") -> None:
    """Raise MissingExtra unless the package can be imported; it is not imported yet."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtra(purpose, package, extra, otherwise)


class NotFound(UserError):
    """Nothing has this name."""

    code = "not_found"

    def __init__(self, kind: str, name: str, known: Iterable[str] = (), remedy: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        hints = [f"no {kind} {shorten(name)!r}", nearest(name, self.known), remedy]
        super().__init__("; ".join(hint for hint in hints if hint))


class Ambiguous(UserError):
    """Several things have this name; the message lists them."""

    code = "ambiguous"

    def __init__(self, kind: str, name: str, candidates: Iterable[str]) -> None:
        self.candidates = tuple(candidates)
        shown = ", ".join(self.candidates[:10])
        more = f" and {len(self.candidates) - 10} more" if len(self.candidates) > 10 else ""
        super().__init__(f"{kind} {shorten(name)!r} is ambiguous: {shown}{more}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the closest known name, or nothing."""
    import difflib

    close = difflib.get_close_matches(name[:200], list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""


def shorten(text: str, limit: int = 80) -> str:
    """Return text fit for one line of a message: a hostile name must not flood the terminal."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
