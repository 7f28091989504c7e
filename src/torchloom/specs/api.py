"""Every public name of this room, where TorchX has them: `torchloom.specs.api`."""

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from torchloom.specs.exceptions import (
    AppStatusError,
    InvalidRunConfigException,
    InvalidRunConfigValue,
    MalformedAppHandleException,
    SpecError,
    UnknownAppException,
    UnknownNamedResource,
    UnknownRole,
    UnknownSchedulerException,
)
from torchloom.specs.options import CfgVal, cases, get_type_name, runopt, runopts
from torchloom.specs.resources import (
    NA,
    NULL_RESOURCE,
    TORCHX_CONTEXT_NAME,
    Resource,
    app_metadata,
    resource_tags,
)
from torchloom.specs.role import (
    ALL,
    MISSING,
    NONE,
    UNKNOWN,
    AppDef,
    AppDryRunInfo,
    BindMount,
    DeviceMount,
    Metadata,
    Mount,
    MountType,
    RetryPolicy,
    Role,
    VolumeMount,
    macros,
)
from torchloom.specs.states import AppState, ReplicaState, is_started, is_terminal
from torchloom.specs.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from torchloom.specs.named import get_named_resources, named_resources, resource
    from torchloom.specs.resources import CapabilityKey
    from torchloom.specs.role import resolved
    from torchloom.specs.serialize import app_from_dict, app_to_dict, dump_app, load_app, read_app
    from torchloom.specs.shape import coerce_app, coerce_resource
    from torchloom.specs.status import AppStatus, ReplicaStatus, RoleStatus
    from torchloom.specs.validate import validate_app

# names that few programs use, by the module that is imported when one is asked for
LAZY = {
    "CapabilityKey": "resources",
    "coerce_app": "shape",
    "coerce_resource": "shape",
    "get_named_resources": "named",
    "named_resources": "named",
    "resource": "named",
    "resolved": "role",
    "app_from_dict": "serialize",
    "app_to_dict": "serialize",
    "dump_app": "serialize",
    "load_app": "serialize",
    "read_app": "serialize",
    "AppStatus": "status",
    "ReplicaStatus": "status",
    "RoleStatus": "status",
    "validate_app": "validate",
}


AppHandle = str


class ParsedAppHandle(NamedTuple):
    """The three parts of a handle."""

    scheduler_backend: str
    session_name: str
    app_id: str


def parse_app_handle(app_handle: AppHandle) -> ParsedAppHandle:
    """Split a handle into its parts; the session may be empty and may contain `/`."""
    match = re.fullmatch("(.+)://(.*)/(.+)", app_handle)
    if match is None:
        raise MalformedAppHandleException(app_handle)
    return ParsedAppHandle(*match.groups())


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> AppHandle:
    """Return the handle with these parts."""
    return f"{scheduler_backend}://{session_name}/{app_id}"


__all__ = [
    "ALL",
    "app_from_dict",
    "app_metadata",
    "app_to_dict",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CapabilityKey",
    "cases",
    "CfgVal",
    "coerce_app",
    "coerce_resource",
    "DeviceMount",
    "dump_app",
    "get_named_resources",
    "get_type_name",
    "InvalidRunConfigException",
    "InvalidRunConfigValue",
    "is_started",
    "is_terminal",
    "load_app",
    "macros",
    "make_app_handle",
    "MalformedAppHandleException",
    "Metadata",
    "MISSING",
    "Mount",
    "MountType",
    "NA",
    "named_resources",
    "NONE",
    "NULL_RESOURCE",
    "parse_app_handle",
    "ParsedAppHandle",
    "read_app",
    "ReplicaState",
    "ReplicaStatus",
    "resolved",
    "Resource",
    "resource",
    "resource_tags",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "runopt",
    "runopts",
    "SpecError",
    "TORCHX_CONTEXT_NAME",
    "TORCHX_HOME",
    "UNKNOWN",
    "UnknownAppException",
    "UnknownNamedResource",
    "UnknownRole",
    "UnknownSchedulerException",
    "validate_app",
    "VolumeMount",
    "Workspace",
]


def TORCHX_HOME(*subdir_paths: str) -> "Path":  # noqa: N802 - TorchX's name
    """Return a folder below TorchX's own state folder, made if need be."""
    from torchloom import settings

    folder = settings.torchx_home().joinpath(*subdir_paths)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"torchloom.specs.{LAZY[name]}"), name)
