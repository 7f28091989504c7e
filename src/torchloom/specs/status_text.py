"""A status as text: the summary people read, and its YAML."""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from torchloom.specs.sentinels import NONE
from torchloom.specs.states import AppState

if TYPE_CHECKING:
    from torchloom.specs.status import AppStatus, ReplicaStatus, RoleStatus

NOT_KNOWN = "<N/A>"
LINE_WIDTH = 80
# an error that came over torch's RPC is wrapped in the name of the worker it came from
RPC_ERROR = re.compile(r"\w*\('On WorkerInfo\(.+\):\n(?:.*\n)*'\)")
# a C++ error carries its own stack in the message; the line before it says what happened
ERROR_BEFORE_STACK = re.compile(r"(.+)\nException")


class ErrorReport(NamedTuple):
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


def read_error(structured: str) -> ErrorReport | None:
    """Understand an error file: torchelastic's nested form or the flat one; None if neither."""
    data = _json_or_text(structured)
    error = data.get("message") if isinstance(data, dict) else None
    if isinstance(error, str):
        return ErrorReport(error, data.get("errorCode"), data.get("timestamp"))
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    extra = error.get("extraInfo")
    timestamp = extra.get("timestamp") if isinstance(extra, dict) else None
    return ErrorReport(error["message"], error.get("errorCode"), timestamp)


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
