"""An app and its roles: what every scheduler takes."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from torchloom.specs.dryrun import AppDryRunInfo
from torchloom.specs.exceptions import UnknownRole
from torchloom.specs.mounts import Mount
from torchloom.specs.resources import Resource, null_resource
from torchloom.specs.sentinels import MISSING
from torchloom.specs.workspace import Workspace

Metadata = dict[str, str]


class RetryPolicy(str, Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """What is started again when a replica fails; every scheduler knows APPLICATION."""

    REPLICA = "REPLICA"
    APPLICATION = "APPLICATION"
    ROLE = "ROLE"


@dataclass
class Role:
    """Processes of one duty. A value: whoever wants another one copies it.

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
        """Return the request to submit; a subclass may change it. Called once a role, in order."""
        return dryrun_info


@dataclass
class AppDef:
    """What runs, as roles."""

    name: str
    roles: list[Role] = field(default_factory=list)
    metadata: Metadata = field(default_factory=Metadata)

    # Roles are found by name; without this, `for role in app` would try app[0], app[1], ...
    __iter__: ClassVar[None] = None

    def get_role(self, name: str) -> Role:
        """Return the first role of this name."""
        for role in self.roles:
            if role.name == name:
                return role
        raise UnknownRole(name, [role.name for role in self.roles])

    def __getitem__(self, name: str) -> Role:
        return self.get_role(name)

    def __contains__(self, name: object) -> bool:
        return any(role.name == name for role in self.roles)
