"""What things are: apps, roles, resources, states, handles, options. Plain data and pure functions.

Names, fields and meanings are those of `torchx.specs`, so a program changes its import and no more.
"""

from typing import TYPE_CHECKING, Any

from torchloom.specs.api import (
    ALL,
    MISSING,
    NA,
    NONE,
    NULL_RESOURCE,
    TORCHX_CONTEXT_NAME,
    TORCHX_HOME,
    UNKNOWN,
    AppDef,
    AppDryRunInfo,
    AppHandle,
    AppState,
    AppStatusError,
    BindMount,
    CfgVal,
    DeviceMount,
    InvalidRunConfigException,
    InvalidRunConfigValue,
    MalformedAppHandleException,
    Metadata,
    Mount,
    MountType,
    ParsedAppHandle,
    ReplicaState,
    Resource,
    RetryPolicy,
    Role,
    SpecError,
    UnknownAppException,
    UnknownNamedResource,
    UnknownRole,
    UnknownSchedulerException,
    VolumeMount,
    Workspace,
    app_metadata,
    cases,
    get_type_name,
    is_started,
    is_terminal,
    macros,
    make_app_handle,
    parse_app_handle,
    resource_tags,
    runopt,
    runopts,
)

if TYPE_CHECKING:
    from torchloom.specs.api import (
        AppStatus,
        CapabilityKey,
        ReplicaStatus,
        RoleStatus,
        app_from_dict,
        app_to_dict,
        coerce_app,
        coerce_resource,
        dump_app,
        get_named_resources,
        load_app,
        named_resources,
        read_app,
        resolved,
        resource,
        validate_app,
    )
    from torchloom.specs.builders import materialize_appdef, parse_mounts

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
    "materialize_appdef",
    "Metadata",
    "MISSING",
    "Mount",
    "MountType",
    "NA",
    "named_resources",
    "NONE",
    "NULL_RESOURCE",
    "parse_app_handle",
    "parse_mounts",
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


def __getattr__(name: str) -> Any:
    """Import what is slow to import only when it is asked for."""
    if name in ("materialize_appdef", "parse_mounts"):
        from torchloom.specs import builders

        return getattr(builders, name)
    from torchloom.specs import api

    if name not in api.LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(api, name)
