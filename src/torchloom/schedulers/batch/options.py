"""The run options that every engine with a script takes, beside its own."""

import re
from collections.abc import Mapping
from typing import Any

from torchloom.errors import UserError, shorten
from torchloom.launch.grammar.values import wishes
from torchloom.launch.records.request import DEFAULT_GRACE, ORPHAN_LIMIT
from torchloom.specs.api import CfgVal, runopts

# What counts inside the allocation, where this machine's own scheduler reads it.
INSIDE = ("policy", "checkpoints", "grace", "orphan_limit", "idle_timeout", "resume_from")
WARN = 120  # seconds before the limit


_COMMON: tuple[tuple[str, Any, CfgVal, str], ...] = (
    ("job_dir", str, None, "a new folder for the job, which all hosts see; default: in LOOM_HOME"),
    ("python", str, None, "the interpreter on the hosts; default: the one that submits"),
    ("setup", list[str], None, "shell lines before the job, parted by ; (module load cuda)"),
    ("cwd", str, None, "the folder it runs in; default: the current one"),
    ("id", str, None, "of the run; default: its name and a few letters"),
    ("spares", int, 0, "hosts to hold back for those that fail"),
    ("warn", int, WARN, "seconds before the limit to save and queue again in; 0: it does not"),
    ("policy", str, None, "after a failure: live, restart, shrink or fail; nan=..; min=N"),
    (
        "checkpoints",
        str,
        None,
        "where they go: a folder, s3://bucket/path; default: with the run",
    ),
    ("grace", int, int(DEFAULT_GRACE), "seconds between SIGTERM and SIGKILL for its ranks"),
    ("orphan_limit", int, int(ORPHAN_LIMIT), "seconds that ranks live on when nobody watches"),
    ("idle_timeout", int, 0, "seconds without output after which it has failed; 0: never"),
)


def add_common(opts: runopts) -> None:
    """Declare them."""
    for name, kind, default, words in _COMMON:
        opts.add(name, type_=kind, default=default, help=words)


def text(cfg: Mapping[str, CfgVal], name: str) -> str:
    """Return an option as text; nothing where it was not given."""
    value = cfg.get(name)
    return "" if value is None else str(value)


def count(cfg: Mapping[str, CfgVal], name: str) -> int:
    """Return an option that is a number from 0."""
    value = cfg.get(name)
    if not isinstance(value, int) or value < 0:
        raise UserError(f"{name}: expected a number from 0, got {value!r}")
    return value


def lines(cfg: Mapping[str, CfgVal], name: str) -> tuple[str, ...]:
    value = cfg.get(name)
    return tuple(value) if isinstance(value, list) else ()


def native(cfg: Mapping[str, CfgVal], family: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's own options that were given; those that we set are refused with why."""
    found = {}
    for key, value in cfg.items():
        prefix, dot, name = key.partition(".")
        if not dot or prefix != family:
            continue
        if not re.sub("[-_]", "", name).isalnum() or not name.isascii():
            raise UserError(f"{shorten(key)!r} names no option; write {family}.NAME=VALUE")
        if name in ours:
            raise UserError(f"{key}: {ours[name]}")
        found[name] = str(value)
    return found


def survives(cfg: Mapping[str, CfgVal]) -> bool:
    """Tell whether the job is to go on when one of its hosts is lost."""
    return wishes(text(cfg, "policy")).get("recovery") in ("live", "shrink")
