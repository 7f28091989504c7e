"""Whether an app can run at all, told before anything is started."""

import re
from collections.abc import Iterable, Iterator

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.limits import check_not_set
from torchloom.specs.role import AppDef, Role
from torchloom.specs.sentinels import MISSING
from torchloom.specs.shape import APP, at
from torchloom.specs.unfold import unfold_app

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MAX_PORT = 65535

Problem = tuple[str, str]


def validate_app(app: AppDef) -> None:
    """Raise the first thing that keeps this app from running, named by its field."""
    APP(unfold_app(app), "")  # every field has its type
    for path, problem in _app_problems(app):
        raise SpecError(path, problem)
    for index, role in enumerate(app.roles):
        check_not_set(role.env, f"roles[{index}].env")


def _app_problems(app: AppDef) -> Iterator[Problem]:
    yield from _name_problems("name", app.name)
    if not app.roles:
        yield "roles", "an app needs at least one role"
    for index, role in enumerate(app.roles):
        path = f"roles[{index}]"
        yield from _name_problems(f"{path}.name", role.name)
        if any(role.name == earlier.name for earlier in app.roles[:index]):
            yield f"{path}.name", f"a role before this one is named {role.name!r} too"
        yield from _count_problems(path, role)
        yield from _command_problems(path, role)


def _name_problems(path: str, name: str) -> Iterator[Problem]:
    if not re.fullmatch(NAME, name):
        allowed = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
        yield path, f"{shorten(name)!r} is not a name: use {allowed}"


def _count_problems(path: str, role: Role) -> Iterator[Problem]:
    least = role.min_replicas
    if role.num_replicas < 1:
        yield f"{path}.num_replicas", f"must be at least 1, is {role.num_replicas}"
    if least is not None and not 0 <= least <= role.num_replicas:
        yield f"{path}.min_replicas", f"must be 0 to num_replicas ({role.num_replicas}), is {least}"
    if role.max_retries < 0:
        yield f"{path}.max_retries", f"must not be negative, is {role.max_retries}"
    for name, port in role.port_map.items():
        if not 0 <= port <= MAX_PORT:
            yield at(f"{path}.port_map", name), f"is not a port: {port} is not in 0..{MAX_PORT}"


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
