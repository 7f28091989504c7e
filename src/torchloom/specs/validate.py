"""Check whether an app can run, before anything is started."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.role import MISSING, AppDef, Role
from torchloom.specs.shape import (
    APP,
    Decoder,
    at,
    integer,
    list_of,
    map_of,
    refuse,
    text,
    unfold_app,
)

LONGEST = 4096  # letters of a text
MOST = 1000  # members of a list or mapping
DEEPEST = 8  # levels of lists and mappings
INT64 = 1 << 63
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_UNPRINTABLE = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,255}"
# The one table of variables that the launcher sets for a rank
# (`launch/agent/rank_environment.py`): a spec must not set them, or rank and
# launcher would disagree.
SET_FOR_PEERS = frozenset(  # where ranks form a group
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"),
        *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "TORCHX_RANK0_HOST"),
    )
)
SET_FOR_ALL = frozenset(
    (
        *("LOOM_JOB", "LOOM_NODE", "LOOM_ATTEMPT", "LOOM_ROLE", "LOOM_GENERATION", "LOOM_LIFE"),
        *("LOOM_STANDIN", "LOOM_CHECKPOINT_ROOT", "LOOM_UNTIL", "LOOM_OWN_END", "LOOM_RESUME"),
        *("LOOM_PAGE", "LOOM_AGENT", "LOOM_AGENT_OF", "LOOM_STORE", "LOOM_STORE_OWNER"),
        *(
            "LOOM_THREADLET_OWNER",
            "LOOM_INNER",
            "LOOM_PYTHON",
            "TORCHELASTIC_ERROR_FILE",
            "PET_LOG_DIR",
        ),
    )
)
_SET_PREFIX = "LOOM_PORT_"
_SET_FOR_JOBS = SET_FOR_ALL | SET_FOR_PEERS | {"LOOM_JOB_SPEC"}
MAX_PORT = 65535
Problem = tuple[str, str]  # the path of a field, and what is wrong with it


def check_not_set(env: Iterable[str], path: str, names: Collection[str] = SET_FOR_ALL) -> None:
    """Refuse a variable that the launcher sets, named by its field."""
    for key in env:
        if key in names or key.startswith(_SET_PREFIX):
            remedy = "give it another name, or leave it out"
            raise SpecError(at(path, key), f"is set by the launcher for every rank: {remedy}")


def name(value: object, path: str) -> str:
    """Accept a name that can be part of a path and of an id."""
    found = text(value, path)
    if not re.fullmatch(_NAME, found):
        allowed = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
        raise SpecError(path, f"{shorten(found)!r} is not a name: use {allowed}")
    return found


def short(value: object, path: str) -> str:
    """Accept text that fits into a command line, a database and a terminal."""
    found = text(value, path)
    if len(found) > LONGEST:
        raise SpecError(path, f"is too long: {len(found)} characters, at most {LONGEST}")
    if re.search(_UNPRINTABLE, found):
        raise SpecError(path, f"has characters that cannot be printed: {shorten(repr(found))}")
    return found


def number_in(low: int, high: int) -> Decoder:
    """Accept a whole number within limits."""

    def decode(value: object, path: str) -> int:
        found = integer(value, path)
        if not low <= found <= high:
            raise SpecError(path, f"must be {low} to {high}, is {_digits(found)}")
        return found

    return decode


def seconds(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < INT64:
        raise refuse(path, "a number of seconds that is not negative", value)
    return float(value)


def plain(value: object, path: str, depth: int = 0) -> Any:
    """Accept any JSON value of a reasonable size and depth."""
    if depth > DEEPEST:
        raise SpecError(path, f"is nested deeper than {DEEPEST} levels")
    if isinstance(value, list | tuple):
        return few(list_of(lambda each, where: plain(each, where, depth + 1)))(value, path)
    if isinstance(value, Mapping):
        return few(map_of(lambda each, where: plain(each, where, depth + 1)))(value, path)
    return None if value is None else scalar(value, path)


def scalar(value: object, path: str) -> Any:
    """Accept text, a finite number, true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return short(value, path)
    if isinstance(value, int) and -INT64 <= value < INT64:
        return value
    if isinstance(value, float) and value - value == 0:  # neither NaN nor infinite
        return value
    raise refuse(path, "text, a finite number, true or false", _shown(value))


def number(value: object, path: str) -> float:
    """Accept a finite number."""
    if isinstance(value, bool | str):
        raise refuse(path, "a finite number", value)
    return float(scalar(value, path))


def few(decode: Decoder) -> Decoder:
    """Accept a list or mapping that has not too many members."""

    def decode_few(value: object, path: str) -> Any:
        if isinstance(value, list | tuple | Mapping) and len(value) > MOST:
            raise SpecError(path, f"has {len(value)} members, at most {MOST}")
        return decode(value, path)

    return decode_few


def tuple_of(decode: Decoder) -> Decoder:
    many = few(list_of(decode))
    return lambda value, path: tuple(many(value, path))


def variables(value: object, path: str) -> dict[str, str]:
    """Accept names and values of environment variables."""
    found: dict[str, str] = few(map_of(short))(value, path)
    for key in found:
        if not re.fullmatch(_VARIABLE, key):
            raise SpecError(at(path, key), "is not a variable's name: use letters, digits and '_'")
    check_not_set(found, path, _SET_FOR_JOBS)
    return found


def _shown(value: object) -> object:
    return _digits(value) if isinstance(value, int) else value


def _digits(number: int) -> str:
    """Return a number short enough for a message; Python refuses to print very long ones."""
    bits = number.bit_length()
    return str(number) if bits <= 128 else f"a number of some {int(bits * 0.302)} digits"


def validate_app(app: AppDef) -> None:
    """Check an app; raise SpecError for the first field that is not valid."""
    APP(unfold_app(app), "")  # every field has its type
    for path, problem in _app_problems(app):
        raise SpecError(path, problem)
    for index, role in enumerate(app.roles):
        check_not_set(role.env, f"roles[{index}].env")


def _app_problems(app: AppDef) -> Iterator[Problem]:
    name(app.name, "name")
    if not app.roles:
        yield "roles", "an app needs at least one role"
    for index, role in enumerate(app.roles):
        path = f"roles[{index}]"
        name(role.name, f"{path}.name")
        if any(role.name == earlier.name for earlier in app.roles[:index]):
            yield f"{path}.name", f"a role before this one is named {role.name!r} too"
        yield from _count_problems(path, role)
        yield from _command_problems(path, role)


def _count_problems(path: str, role: Role) -> Iterator[Problem]:
    least = role.min_replicas
    if role.num_replicas < 1:
        yield f"{path}.num_replicas", f"must be at least 1, is {role.num_replicas}"
    if least is not None and not 0 <= least <= role.num_replicas:
        yield f"{path}.min_replicas", f"must be 0 to num_replicas ({role.num_replicas}), is {least}"
    if role.max_retries < 0:
        yield f"{path}.max_retries", f"must not be negative, is {role.max_retries}"
    for label, port in role.port_map.items():
        if not 0 <= port <= MAX_PORT:
            yield at(f"{path}.port_map", label), f"is not a port: {port} is not in 0..{MAX_PORT}"


def _command_problems(path: str, role: Role) -> Iterator[Problem]:
    if role.entrypoint in ("", MISSING):
        yield f"{path}.entrypoint", "is not set: name the program to run"
    for key in role.env:
        if not key or "=" in key:
            yield at(f"{path}.env", key), "a variable's name must not be empty nor contain '='"
    for where, value in _strings(path, role):
        if "\0" in value:
            yield where, "contains a NUL byte, which no command line can carry"
        if not _encodable(value):
            yield where, f"cannot be written as UTF-8: {shorten(repr(value))}"


def _strings(path: str, role: Role) -> Iterable[tuple[str, str]]:
    yield f"{path}.image", role.image
    yield f"{path}.entrypoint", role.entrypoint
    for index, arg in enumerate(role.args):
        yield f"{path}.args[{index}]", arg
    for key, value in role.env.items():
        yield at(f"{path}.env", key), key
        yield at(f"{path}.env", key), value


def _encodable(value: str) -> bool:
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
