"""The state of an app with its roles and replicas, as data, JSON and text."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any

from torchloom.specs.exceptions import AppStatusError
from torchloom.specs.sentinels import NONE
from torchloom.specs.states import AppState, ReplicaState, is_terminal


@dataclass
class ReplicaStatus:
    """One replica; `id` is its place in the role, `hostaddr` is `hostname` unless said."""

    id: int
    state: ReplicaState
    role: str
    hostname: str
    structured_error_msg: str = NONE
    hostaddr: str | None = None

    def __post_init__(self) -> None:
        if self.hostaddr is None:
            self.hostaddr = self.hostname

    def to_json(self) -> dict[str, Any]:
        return {**_fields(self), "state": self.state.name}

    @staticmethod
    def from_json(data: object, path: str = "replica") -> "ReplicaStatus":
        """Read what `to_json` wrote; the state may also be a number, as TorchX writes it."""
        from torchloom.specs import shape

        decoders = {
            "id": shape.integer,
            "state": shape.member_of(AppState),
            "role": shape.text,
            "hostname": shape.text,
            "structured_error_msg": shape.text,
            "hostaddr": shape.optional(shape.text),
        }
        required = ("id", "state", "role", "hostname")
        status: ReplicaStatus = shape.Record(ReplicaStatus, decoders, required)(data, path)
        return status


@dataclass
class RoleStatus:
    """The replicas of one role."""

    role: str
    replicas: list[ReplicaStatus]

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "replicas": [replica.to_json() for replica in self.replicas]}

    @staticmethod
    def from_json(data: object, path: str = "role") -> "RoleStatus":
        """Read what `to_json` wrote."""
        from torchloom.specs import shape

        decoders = {"role": shape.text, "replicas": shape.list_of(ReplicaStatus.from_json)}
        status: RoleStatus = shape.Record(RoleStatus, decoders, ("role", "replicas"))(data, path)
        return status


@dataclass
class AppStatus:
    """What a scheduler says of an app; the replicas are those of the latest attempt."""

    state: AppState
    num_restarts: int = 0
    msg: str = ""
    structured_error_msg: str = NONE
    ui_url: str | None = None
    roles: list[RoleStatus] = field(default_factory=list)

    def is_terminal(self) -> bool:
        return is_terminal(self.state)

    def raise_for_status(self) -> None:
        """Raise unless the app SUCCEEDED."""
        if self.state is not AppState.SUCCEEDED:
            raise AppStatusError(self, f"app did not succeed: {self}")

    def to_json(self, filter_roles: Collection[str] | None = None) -> dict[str, Any]:
        """Return plain data; states are names everywhere."""
        return {
            "state": self.state.name,
            "num_restarts": self.num_restarts,
            "roles": [role.to_json() for role in self.only(filter_roles)],
            "msg": self.msg,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
        }

    @staticmethod
    def from_json(data: object, path: str = "status") -> "AppStatus":
        """Read what `to_json` wrote."""
        from torchloom.specs import shape

        decoders = {
            "state": shape.member_of(AppState),
            "num_restarts": shape.integer,
            "roles": shape.list_of(RoleStatus.from_json),
            "msg": shape.text,
            "structured_error_msg": shape.text,
            "url": shape.optional(shape.text),
        }
        status: AppStatus = shape.Record(_status, decoders, ("state",))(data, path)
        return status

    def format(self, filter_roles: Collection[str] | None = None) -> str:
        """Return the status as text for people."""
        from torchloom.specs.status_text import status_text

        return status_text(self, self.only(filter_roles))

    def only(self, names: Collection[str] | None) -> list[RoleStatus]:
        """Return the roles of these names, or all when none are given."""
        return [role for role in self.roles if not names or role.role in names]

    def __repr__(self) -> str:
        from torchloom.specs.status_text import status_yaml

        return status_yaml(self)


def _fields(value: ReplicaStatus) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _status(*, url: str | None = None, **known: Any) -> AppStatus:
    return AppStatus(**known, ui_url=url)
