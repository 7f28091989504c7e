"""Write variables in the words of a shell, so that `eval` sets them as they were."""

from collections.abc import Callable, Mapping

from torchloom.errors import NotFound
from torchloom.launch.assembly.ssh import NAME


def render(variables: Mapping[str, str], shell: str) -> str:
    """Return one statement a variable; names that no shell can set are left out."""
    if shell not in SHELLS:
        raise NotFound("shell", shell, SHELLS, f"write one of {', '.join(SHELLS)}")
    line = SHELLS[shell]
    return "".join(line(n, v) for n, v in variables.items() if NAME.fullmatch(n))


def unsettable(variables: Mapping[str, str]) -> list[str]:
    """Return the names that no shell can set."""
    return [name for name in variables if not NAME.fullmatch(name)]


def _posix(name: str, value: str) -> str:
    quoted = value.replace("'", "'\\''")
    return f"export {name}='{quoted}'\n"


def _fish(name: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"set -gx {name} '{quoted}'\n"


SHELLS: Mapping[str, Callable[[str, str], str]] = {
    "bash": _posix,
    "zsh": _posix,
    "sh": _posix,
    "fish": _fish,
}
