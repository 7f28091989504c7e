"""The command line of `loom launch`, as a value: what a role says when it wants our own agent."""

from collections.abc import Sequence
from dataclasses import dataclass

from torchloom.errors import UserError


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """So many ranks of one command on every node; no number means one a device, else one."""

    command: tuple[str, ...]
    ranks: int | None = None

    @classmethod
    def parse(cls, argv: Sequence[str]) -> "LaunchCommand | None":
        """Read `loom launch -n N [--nnodes ..] -- COMMAND`; nothing when it is another command."""
        if list(argv[:2]) != ["loom", "launch"]:
            return None
        words = list(argv[2:])
        ranks: int | None = None
        while words and words[0].startswith("-") and words[0] != "--":
            flag, value = words[0], words[1] if len(words) > 1 else ""
            if flag not in ("-n", "--nnodes"):
                raise UserError(f"loom launch: unknown option {flag!r}; known: -n, --nnodes")
            if flag == "-n" and value != "auto":
                ranks = _count(value)
            words = words[2:]
        command = tuple(words[1:] if words[:1] == ["--"] else words)
        if not command:
            raise UserError("loom launch: no command; write `loom launch -n 4 -- python train.py`")
        return cls(command, ranks)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise UserError(f"loom launch: -n takes a number from 1 or `auto`, not {text!r}")
    return int(text)
