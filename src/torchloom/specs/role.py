"""An app and its roles: what every scheduler takes."""

import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torchloom.errors import nearest
from torchloom.specs.exceptions import SpecError, UnknownRole
from torchloom.specs.options import CfgVal
from torchloom.specs.resources import Resource, null_resource
from torchloom.specs.workspace import Workspace

if TYPE_CHECKING:
    pass

ALL = "all"  # every scheduler
MISSING = "<MISSING>"  # has to be set before the app can run
NONE = "<NONE>"  # optional and not set
UNKNOWN = "<UNKNOWN>"  # was set, but the reader cannot tell to what
T = TypeVar("T")


class MountType(str, Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """The type of a mount, as in `type=bind`."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


@dataclass
class BindMount:
    """A path of the host, mounted into the container."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A named volume of the scheduler, mounted into the container."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A device of the host; permissions are the letters r, w and m (make nodes)."""

    src_path: str
    dst_path: str
    permissions: str = "rwm"


Mount = BindMount | VolumeMount | DeviceMount


class AppDryRunInfo(Generic[T]):
    """A scheduler's request with the app and the options it was made from.

    `request` may be changed before it is submitted; `cfg` may only be replaced as a whole.
    """

    def __init__(self, request: T, fmt: Callable[[T], str]) -> None:
        self.request = request
        self.app: AppDef | None = None
        self.cfg = {}
        self._fmt = fmt
        self._scheduler: str | None = None

    @property
    def cfg(self) -> Mapping[str, CfgVal]:
        return self._cfg

    @cfg.setter
    def cfg(self, cfg: Mapping[str, CfgVal]) -> None:
        self._cfg = MappingProxyType(cfg) if isinstance(cfg, dict) else cfg

    def __repr__(self) -> str:
        return self._fmt(self.request)


Metadata = dict[str, str]


class RetryPolicy(str, Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """What is restarted when a replica fails; every scheduler supports APPLICATION."""

    REPLICA = "REPLICA"
    APPLICATION = "APPLICATION"
    ROLE = "ROLE"


@dataclass
class Role:
    """Processes that run the same program, as `num_replicas` replicas.

    Treat a role as a value: to change one, copy it.

    `overrides` are late values of other fields; nothing here reads them but `resolved`.
    """

    name: str
    image: str
    min_replicas: int | None = None
    entrypoint: str = MISSING
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    num_replicas: int = 1
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    resource: Resource = field(default_factory=null_resource)
    port_map: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    workspace: Workspace | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
        """Return the request to submit, which a subclass may change. Called once per role."""
        return dryrun_info


@dataclass
class AppDef:
    """An app: what runs, as one or more roles. Every scheduler takes it.

    Example:
        >>> from torchloom.specs import AppDef, Resource, Role
        >>> trainer = Role(
        ...     "trainer",
        ...     image="",
        ...     entrypoint="python",
        ...     args=["train.py"],
        ...     num_replicas=2,
        ...     resource=Resource(cpu=4, gpu=1, memMB=8192),
        ... )
        >>> app = AppDef("gpt", [trainer])
    """

    name: str
    roles: list[Role] = field(default_factory=list)
    metadata: Metadata = field(default_factory=Metadata)

    # Roles are found by name; without this, `for role in app` would try app[0], app[1], ...
    __iter__: ClassVar[None] = None

    def get_role(self, name: str) -> Role:
        """Return the first role of this name.

        Raises:
            UnknownRole: The app has no such role.
        """
        for role in self.roles:
            if role.name == name:
                return role
        raise UnknownRole(name, [role.name for role in self.roles])

    def __getitem__(self, name: str) -> Role:
        return self.get_role(name)

    def __contains__(self, name: object) -> bool:
        return any(role.name == name for role in self.roles)


class macros:
    """Placeholders in a role's args, env and metadata, which are replaced for each replica."""

    img_root = "${img_root}"
    app_id = "${app_id}"
    replica_id = "${replica_id}"
    rank0_env = "${rank0_env}"  # the NAME of the variable that holds rank 0's host

    @dataclass
    class Values:
        """What the macros stand for in one replica."""

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str

        def apply(self, role: Role) -> Role:
            """Return a deep copy of the role with every macro replaced."""
            # late values may be coroutines, which cannot be copied: the copy gets the same ones
            filled = copy.deepcopy(role, {id(role.overrides): dict(role.overrides)})
            filled.args = [self.substitute(arg) for arg in filled.args]
            filled.env = {key: self.substitute(value) for key, value in filled.env.items()}
            filled.metadata = self._fill(filled.metadata)
            return filled

        def _fill(self, value: Any) -> Any:
            if isinstance(value, str):
                return self.substitute(value)
            if isinstance(value, dict):
                return {key: self._fill(inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [self._fill(inner) for inner in value]
            return value

        def to_dict(self) -> dict[str, Any]:
            return asdict(self)

        def substitute(self, arg: str) -> str:
            """Return the text with macros replaced; other `$` words stay, `$$` becomes `$`."""
            from string import Template

            return Template(arg).safe_substitute(self.to_dict())


def resolved(role: Role) -> Role:
    """Return a copy with `overrides` applied and empty: each callable is called once.

    An awaitable, given or returned, is run to its end.
    """
    known = {field.name for field in fields(role)} - {"overrides"}
    for name in role.overrides:
        if name not in known:
            raise SpecError(f"overrides.{name}", f"unknown field; {nearest(name, known)}")
    values = {name: _value(late) for name, late in role.overrides.items()}
    return replace(role, **{**values, "overrides": {}})


def _value(late: Any) -> Any:
    value = late() if callable(late) else late
    return _run(value) if isinstance(value, Awaitable) else value


def _run(awaitable: Awaitable[Any]) -> Any:
    """Run it on a thread of its own: this one may have a running loop."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await awaitable

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, wait()).result()
