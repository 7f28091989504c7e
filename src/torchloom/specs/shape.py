"""Build specs from plain data, with errors that name the field."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from torchloom.errors import nearest, shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.resources import Resource
from torchloom.specs.role import (
    AppDef,
    BindMount,
    DeviceMount,
    MountType,
    RetryPolicy,
    Role,
    VolumeMount,
)
from torchloom.specs.workspace import Workspace

MOUNT_NAMES: Mapping[str, MountType] = {
    "BindMount": MountType.BIND,
    "VolumeMount": MountType.VOLUME,
    "DeviceMount": MountType.DEVICE,
}


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


class RecordShape:
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
        hint = nearest(str(key), self.fields) or f"known: {', '.join(self.fields)}"
        return f"unknown field; {hint}"


RESOURCE = RecordShape(
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
MOUNTS: Mapping[MountType, RecordShape] = {
    MountType.BIND: RecordShape(
        BindMount,
        {"src_path": text, "dst_path": text, "read_only": boolean},
        ("src_path", "dst_path"),
    ),
    MountType.VOLUME: RecordShape(
        VolumeMount, {"src": text, "dst_path": text, "read_only": boolean}, ("src", "dst_path")
    ),
    MountType.DEVICE: RecordShape(
        DeviceMount,
        {"src_path": text, "dst_path": text, "permissions": text},
        ("src_path", "dst_path"),
    ),
}
WORKSPACE = RecordShape(Workspace, {"projects": map_of(text)}, ("projects",))


def mount(value: object, path: str) -> Any:
    """Read a mount; its `type` decides which fields it has."""
    data = dict(mapping(value, path))
    if "type" not in data:
        kinds = ", ".join(kind.value for kind in MountType)
        raise SpecError(at(path, "type"), f"missing; one of {kinds}")
    kind = member_of(MountType)(data.pop("type"), at(path, "type"))
    return MOUNTS[kind](data, path)


def workspace(value: object, path: str) -> Any:
    """Read a workspace: its projects, or the one path that it is."""
    return Workspace({value: ""}) if isinstance(value, str) else WORKSPACE(value, path)


ROLE = RecordShape(
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
APP = RecordShape(
    AppDef, {"name": text, "roles": list_of(ROLE), "metadata": map_of(text)}, ("name", "roles")
)


def unfold_app(app: object, path: str = "") -> Any:
    """Return the app as nested mappings and lists; what is of the wrong kind is left as it is."""
    plain = _by_name(app, path, APP)
    if isinstance(plain, dict) and isinstance(plain.get("roles"), list | tuple):
        roles = enumerate(plain["roles"])
        plain["roles"] = [_role(role, f"{at(path, 'roles')}[{index}]") for index, role in roles]
    return plain


def unfold_resource(resource: object, path: str) -> Any:
    """Return the resource as a mapping."""
    return _by_name(resource, path, RESOURCE)


def _role(role: object, path: str) -> Any:
    plain = _by_name(role, path, ROLE, skip="overrides")
    if not isinstance(plain, dict):
        return plain
    unfold = {
        "resource": unfold_resource,
        "workspace": _workspace,
        "retry_policy": _member,
        "mounts": _mounts,
    }
    done = {key: unfold[key](plain[key], at(path, key)) for key in unfold if key in plain}
    return {**plain, **done}


def _workspace(workspace: object, path: str) -> Any:
    return _by_name(workspace, path, WORKSPACE)


def _member(value: object, path: str) -> object:
    return value.name if isinstance(value, Enum) else value


def _mounts(mounts: object, path: str) -> Any:
    if not isinstance(mounts, list | tuple):
        return mounts
    return [_mount(mount, f"{path}[{index}]") for index, mount in enumerate(mounts)]


def _mount(mount: object, path: str) -> Any:
    names = (base.__name__ for base in type(mount).__mro__)
    kind = next((MOUNT_NAMES[name] for name in names if name in MOUNT_NAMES), None)
    if kind is None:
        return mount
    return {"type": kind.value, **_by_name(mount, path, MOUNTS[kind])}


def _by_name(value: object, path: str, record: RecordShape, skip: str = "") -> Any:
    """Return a dataclass as a mapping; a field we do not have must at least be empty."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {
        field.name: getattr(value, field.name) for field in fields(value) if field.name != skip
    }
    for name in found.keys() - record.fields.keys():
        if found[name]:
            shown = shorten(repr(found[name]))
            raise SpecError(at(path, name), f"there is no such field here, and it is {shown}")
    return {name: found[name] for name in found if name in record.fields}


def coerce_app(obj: object) -> AppDef:
    """Return an AppDef unchanged; copy one of another class, such as TorchX's."""
    if isinstance(obj, AppDef):
        if not isinstance(obj.roles, list) or not all(isinstance(r, Role) for r in obj.roles):
            raise SpecError("roles", f"expected a list of Role, got {shorten(repr(obj.roles))}")
        return obj
    if not is_dataclass(obj) or isinstance(obj, type) or not hasattr(obj, "roles"):
        shown = f"{type(obj).__name__}: {shorten(repr(obj))}"
        raise SpecError("", f"expected an AppDef, got {shown}; a component has to return one")
    app: AppDef = APP(unfold_app(obj), "")
    return app


def coerce_resource(obj: object, path: str = "resource") -> Resource:
    """Return a Resource unchanged; copy one of another class."""
    if isinstance(obj, Resource):
        return obj
    resource: Resource = RESOURCE(unfold_resource(obj, path), path)
    return resource
