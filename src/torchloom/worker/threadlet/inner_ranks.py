"""Ranks that a launcher inside a rank starts: torchrun, `accelerate launch`, `mp.spawn`, Lightning.

Each of their processes reports for a rank of the same job. It takes a seat, a file that names it:
at its start if the launcher has set RANK, else when it has joined its process group.
It runs before the user's first line, so it imports almost nothing.
"""

import contextlib
import os
import sys
import time

from torchloom.launch.variables import PLACE_VARIABLES
from torchloom.worker.environment import (
    ATTEMPT_VARIABLE,
    INCARNATION_VARIABLE,
    INNER_VARIABLE,
    OWNER_VARIABLE,
    PAGE_VARIABLE,
    STORE_VARIABLE,
)
from torchloom.worker.threadlet import owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from typing import Any

    Env = MutableMapping[str, str]

_PROGRAMS = ("accelerate", "deepspeed", "fabric", "torchrun")
_MODULES = (
    "accelerate.commands.accelerate_cli",
    "accelerate.commands.launch",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
    "torch.distributed.launch",
    "torch.distributed.run",
)
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
_UNSEEN = "unseen"
_MOMENT, _PATIENCE = 0.01, 2.0  # seconds: the others take their seats at the same time
_BEGUN = (24, 8)  # where a progress page has the number of steps applied, and its size


def is_launcher(argv: "Sequence[str]") -> bool:
    """Tell whether an interpreter runs a launcher, which starts ranks and is none."""
    words = list(argv[1:])
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words.pop(0)
    if words[:1] == ["-m"]:
        return words[1:2] != [] and words[1] in _MODULES
    return words != [] and os.path.basename(words[0]) in _PROGRAMS


def admit(env: "Env") -> None:
    """Let the interpreters that this process starts look for a rank to report for."""
    env[INNER_VARIABLE] = _place(env)
    known = env.get("PYTHONPATH", "")
    if _SITE not in known.split(os.pathsep):
        env["PYTHONPATH"] = os.pathsep.join([_SITE, known]) if known else _SITE


def is_on_host(env: "Mapping[str, str]") -> bool:
    """Tell whether the rank whose children these are runs on this host; only there it is reached.

    Launchers such as srun pass its variables to processes on other hosts, too.
    """
    page = env.get(PAGE_VARIABLE)
    return not page or os.path.isdir(os.path.dirname(page))


def has_own_place(env: "Mapping[str, str]") -> bool:
    """Tell whether a launcher inside the rank has given this process a rank of its own."""
    rank, world = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    is_complete = rank.isdecimal() and world.isdecimal() and int(rank) < int(world)
    return is_complete and env.get(INNER_VARIABLE, _place(env)) != _place(env)


def take_own_place(env: "Env") -> "dict[str, str]":
    """Report for the rank that a launcher has set; return its variables, or none."""
    return take_place(env, int(env["RANK"]), int(env["WORLD_SIZE"]))


def take_place(env: "Env", rank: int, world: int) -> "dict[str, str]":
    """Report for a rank from now on; return its variables, or none if another process does."""
    folder = _folder(env)
    if not folder:
        return {}
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)  # in the job's, which its agent may have removed: not made again
    ours = owner.own_name()
    if not owner.win(_seat(folder, rank), ours):
        return {}
    owner.become(env)
    env[INNER_VARIABLE] = _place(env)  # its own children are no ranks
    env.pop(INCARNATION_VARIABLE, None)  # its launcher replaces it, not ours
    restarts = env.get(_RESTARTS, "")
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        PAGE_VARIABLE: os.path.join(folder, f"page-{rank}"),
        STORE_VARIABLE: store(env),
        INCARNATION_VARIABLE: str(int(restarts) + 1 if restarts.isdecimal() else 1),
    }


def is_separate(env: "Mapping[str, str]", rank: int) -> bool:
    """Tell whether the process group is apart from the job, whose own process takes steps."""
    return rank == 0 and _has_begun(env.get(PAGE_VARIABLE, ""))


def is_complete(env: "Env", world: int) -> bool:
    """Take the seat of rank 0; tell whether all ranks of the process group have theirs.

    Those of others are waited for only if there are some: forks and strangers take none.
    """
    folder = _folder(env)
    if not os.path.isdir(folder) or not owner.win(_seat(folder, 0), env[OWNER_VARIABLE]):
        return False
    deadline = time.monotonic() + _PATIENCE
    while 1 < (taken := _taken(folder, world)) < world and time.monotonic() < deadline:
        time.sleep(_MOMENT)
    return taken == world


def leave_unseen(env: "Mapping[str, str]") -> None:
    """Record that this process trains, and that another one of the job has the seat of its rank."""
    with open(os.path.join(_folder(env), _UNSEEN), "a") as file:
        file.write(f"{owner.own_name()} {_place(env)}\n")


def are_unseen(env: "Mapping[str, str]") -> bool:
    """Tell whether processes of this job train for which there was no seat."""
    folder = _folder(env)
    return bool(folder) and os.path.exists(os.path.join(folder, _UNSEEN))


def store(env: "Mapping[str, str]") -> str:
    """Return where the inner ranks agree on commands: over hosts, where their launchers do."""
    known = env.get(STORE_VARIABLE, "")
    if known.startswith("tcp://"):
        return known
    return f"file://{_folder(env)}/{env.get(_RESTARTS) or 0}"


def _place(env: "Mapping[str, str]") -> str:
    return "/".join(env.get(name, "") for name in PLACE_VARIABLES)


def _folder(env: "Mapping[str, str]") -> str:
    """Return where the inner ranks of a role have their seats and pages on this host."""
    page = env.get(PAGE_VARIABLE)
    if not page:
        return ""
    role, attempt = env.get("LOOM_ROLE") or "trainer", env.get(ATTEMPT_VARIABLE) or "0"
    return os.path.join(os.path.dirname(page), f"inner-{role}-{attempt}")


def _seat(folder: str, rank: int) -> str:
    return os.path.join(folder, f"seat-{rank}")


def _taken(folder: str, world: int) -> int:
    return sum(owner.lives(_seat(folder, rank)) for rank in range(world))


def _has_begun(page: str) -> bool:
    """Tell whether the process that was started as the rank takes steps itself."""
    at, size = _BEGUN
    try:
        with open(page, "rb") as file:
            file.seek(at)
            return any(file.read(size))
    except OSError:
        return False


def group() -> "tuple[int, int]":
    """Return rank and size of the program's process group; 0 and 0 if there is none."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0, 0
    return dist.get_rank(), dist.get_world_size()
