"""Build specs from plain data, with errors that name the field."""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from torchloom.errors import nearest, shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount
from torchloom.specs.resources import Resource
from torchloom.specs.role import AppDef, RetryPolicy, Role
from torchloom.specs.workspace import Workspace

Decoder = Callable[[object, str], Any]


def at(path: str, key: object) -> str:
    """Return the path of a member: `roles[0]`, `.env.HOME`, or `['odd key']`."""
    plain = isinstance(key, str) and re.fullmatch(r"[\w.$/-]{1,64}", key)
    if not plain:
        return f"{path}[{shorten(repr(key))}]"
    return f"{path}.{key}" if path else str(key)


def refuse(path: str, expected: str, value: object) -> SpecError:
    """Return the error for a value that is something else than expected."""
    return SpecError(path, f"expected {expected}, got {shorten(repr(value))}")


def text(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        wanted = f"str, got {shorten(repr(value))}"
        raise SpecError(path, f"expected {wanted}; put it in quotes if text is meant")
    raise refuse(path, "str", value)


def integer(value: object, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise refuse(path, "int", value)


def boolean(value: object, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise refuse(path, "true or false", value)


def anything(value: object, path: str) -> Any:
    return value


def mapping(value: object, path: str) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    raise refuse(path or "app", "a mapping", value)


def optional(decode: Decoder) -> Decoder:
    return lambda value, path: None if value is None else decode(value, path)


def list_of(decode: Decoder) -> Decoder:
    def decode_list(value: object, path: str) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise refuse(path, "a list", value)
        return [decode(item, f"{path}[{index}]") for index, item in enumerate(value)]

    return decode_list


def map_of(decode: Decoder) -> Decoder:
    def decode_map(value: object, path: str) -> dict[str, Any]:
        items = mapping(value, path).items()
        return {text(key, at(path, key)): decode(item, at(path, key)) for key, item in items}

    return decode_map


def member_of(kind: type[Enum]) -> Decoder:
    """Accept a member by name or by value, in any case."""
    spelled = {str(word).lower(): each for each in kind for word in (each.value, each.name)}

    def decode_member(value: object, path: str) -> Enum:
        word = value.name if isinstance(value, Enum) else value
        found = None if isinstance(word, bool) else spelled.get(str(word).lower())
        if found is None:
            raise refuse(path, f"one of {', '.join(each.name for each in kind)}", value)
        return found

    return decode_member


class Record:
    """Decode a mapping with known fields into keyword arguments of `make`."""

    def __init__(
        self, make: Callable[..., Any], fields: Mapping[str, Decoder], required: Iterable[str] = ()
    ) -> None:
        self.make = make
        self.fields = fields
        self.required = tuple(required)

    def __call__(self, value: object, path: str) -> Any:
        data = mapping(value, path)
        for key in data:
            if key not in self.fields:
                raise SpecError(at(path, key), self._unknown(key))
        for name in self.required:
            if name not in data:
                raise SpecError(at(path, name), "missing, and it has no default")
        return self.make(**{key: self.fields[key](data[key], at(path, key)) for key in data})

    def _unknown(self, key: object) -> str:
        hint = nearest(str(key), self.fields) or f"there are: {', '.join(self.fields)}"
        return f"unknown field; {hint}"


RESOURCE = Record(
    Resource,
    {
        "cpu": integer,
        "gpu": integer,
        "memMB": integer,
        "capabilities": map_of(anything),
        "devices": map_of(integer),
        "tags": map_of(anything),
    },
)
MOUNTS: Mapping[MountType, Record] = {
    MountType.BIND: Record(
        BindMount,
        {"src_path": text, "dst_path": text, "read_only": boolean},
        ("src_path", "dst_path"),
    ),
    MountType.VOLUME: Record(
        VolumeMount, {"src": text, "dst_path": text, "read_only": boolean}, ("src", "dst_path")
    ),
    MountType.DEVICE: Record(
        DeviceMount,
        {"src_path": text, "dst_path": text, "permissions": text},
        ("src_path", "dst_path"),
    ),
}
WORKSPACE = Record(Workspace, {"projects": map_of(text)}, ("projects",))


def mount(value: object, path: str) -> Any:
    """Read a mount; its `type` says which fields it has."""
    data = dict(mapping(value, path))
    if "type" not in data:
        kinds = ", ".join(kind.value for kind in MountType)
        raise SpecError(at(path, "type"), f"missing; one of {kinds}")
    kind = member_of(MountType)(data.pop("type"), at(path, "type"))
    return MOUNTS[kind](data, path)


def workspace(value: object, path: str) -> Any:
    """Read a workspace: its projects, or the one path that it is."""
    return Workspace({value: ""}) if isinstance(value, str) else WORKSPACE(value, path)


ROLE = Record(
    Role,
    {
        "name": text,
        "image": text,
        "min_replicas": optional(integer),
        "entrypoint": text,
        "args": list_of(text),
        "env": map_of(text),
        "num_replicas": integer,
        "max_retries": integer,
        "retry_policy": member_of(RetryPolicy),
        "resource": RESOURCE,
        "port_map": map_of(integer),
        "metadata": map_of(anything),
        "mounts": list_of(mount),
        "workspace": optional(workspace),
    },
    ("name", "image"),
)
APP = Record(
    AppDef, {"name": text, "roles": list_of(ROLE), "metadata": map_of(text)}, ("name", "roles")
)
