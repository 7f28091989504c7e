"""The state of an app with its roles and replicas, as data, JSON and text."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from torchloom.specs.exceptions import AppStatusError
from torchloom.specs.role import NONE
from torchloom.specs.states import AppState, ReplicaState, is_terminal

if TYPE_CHECKING:
    pass

NOT_KNOWN = "<N/A>"
LINE_WIDTH = 80
# an error that came over torch's RPC is wrapped in the name of the worker it came from
RPC_ERROR = re.compile(r"\w*\('On WorkerInfo\(.+\):\n(?:.*\n)*'\)")
# a C++ error carries its own stack in the message; the line before it has the cause
ERROR_BEFORE_STACK = re.compile(r"(.+)\nException")


@dataclass
class ReplicaStatus:
    """The status of a replica; `id` is its index in the role, `hostaddr` defaults to `hostname`."""

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
        status: ReplicaStatus = shape.RecordShape(ReplicaStatus, decoders, required)(data, path)
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
        status: RoleStatus = shape.RecordShape(RoleStatus, decoders, ("role", "replicas"))(
            data, path
        )
        return status


@dataclass
class AppStatus:
    """The status of an app as its scheduler reports it, with the replicas of the latest attempt."""

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
        status: AppStatus = shape.RecordShape(_status, decoders, ("state",))(data, path)
        return status

    def format(self, filter_roles: Collection[str] | None = None) -> str:
        """Return the status as text for people."""

        return status_text(self, self.only(filter_roles))

    def only(self, names: Collection[str] | None) -> list[RoleStatus]:
        """Return the roles of these names, or all when none are given."""
        return [role for role in self.roles if not names or role.role in names]

    def __repr__(self) -> str:

        return status_yaml(self)


def _fields(value: ReplicaStatus) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _status(*, url: str | None = None, **known: Any) -> AppStatus:
    return AppStatus(**known, ui_url=url)


class ReplicaErrorReport(NamedTuple):
    """What a failed replica left in its error file."""

    message: str
    exitcode: object = None
    timestamp: object = None


def status_text(status: "AppStatus", roles: Iterable["RoleStatus"]) -> str:
    """Return the summary of a status, with a line or more for each replica of these roles."""
    replicas = "".join(
        _replica_text(replica)
        for role in roles
        for replica in sorted(role.replicas, key=lambda replica: replica.id)
    )
    rows = (
        "AppStatus:",
        f"State: {status.state}",
        f"Num Restarts: {status.num_restarts}",
        f"Roles: {replicas}",
        f"Msg: {status.msg}",
        f"Structured Error Msg: {status.structured_error_msg}",
        f"UI URL: {status.ui_url}",
        "",
    )
    return "\n    ".join(rows)


def status_yaml(status: "AppStatus") -> str:
    """Return the whole status as YAML, the structured error opened up."""
    import yaml

    plain = status.to_json()
    plain["ui_url"] = plain.pop("url")
    plain["state"] = repr(status.state)
    if status.structured_error_msg != NONE:
        plain["structured_error_msg"] = _json_or_text(status.structured_error_msg)
    return yaml.safe_dump({"AppStatus": plain})


def read_error(structured: str) -> ReplicaErrorReport | None:
    """Understand an error file: torchelastic's nested form or the flat one; None if neither."""
    data = _json_or_text(structured)
    error = data.get("message") if isinstance(data, dict) else None
    if isinstance(error, str):
        return ReplicaErrorReport(error, data.get("errorCode"), data.get("timestamp"))
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    extra = error.get("extraInfo")
    timestamp = extra.get("timestamp") if isinstance(extra, dict) else None
    return ReplicaErrorReport(error["message"], error.get("errorCode"), timestamp)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # written by the job: it may be anything
        return text


def _replica_text(replica: "ReplicaStatus") -> str:
    mark = "*" if replica.id == 0 else " "  # shows where a role begins
    return f"\n {mark}{replica.role}[{replica.id}]:{_outcome(replica)}"


def _outcome(replica: "ReplicaStatus") -> str:
    if replica.structured_error_msg == NONE:
        silent = replica.state in (AppState.CANCELLED, AppState.FAILED)
        return f"{replica.state} (no reply file)" if silent else str(replica.state)
    report = read_error(replica.structured_error_msg)
    if report is None:
        return f"{replica.state}\n        error_msg: {replica.structured_error_msg}"
    rows = (
        f"{replica.state} (exitcode: {report.exitcode or NOT_KNOWN})",
        f"        timestamp: {_local_time(report.timestamp)}",
        f"        hostname: {replica.hostname}",
        f"        error_msg: {_wrapped(_essence(report.message))}",
    )
    return "\n".join(rows)


def _local_time(timestamp: Any) -> str:
    try:
        return str(datetime.fromtimestamp(int(timestamp)))
    except (TypeError, ValueError, OverflowError, OSError):
        return NOT_KNOWN


def _essence(message: str) -> str:
    rpc = RPC_ERROR.search(message)
    inner = rpc.group() if rpc else message
    stacked = ERROR_BEFORE_STACK.search(inner)
    return stacked.group(1) if stacked else inner


def _wrapped(message: str) -> str:
    indent = " " * len("    error_msg: ")
    return f"\n{indent}".join(_lines(message))


def _lines(message: str) -> Iterator[str]:
    """Break at the first space after LINE_WIDTH characters; words stay whole."""
    start = 0
    while (cut := message.find(" ", start + LINE_WIDTH)) != -1:
        yield message[start:cut]
        start = cut
    yield message[start:]
