"""`run --stdin`: the request as JSON, in TorchX's form."""

import json
from collections.abc import Mapping
from typing import Any, TextIO

from torchloom.cli.target import Request
from torchloom.errors import UserError, nearest, shorten
from torchloom.schedulers import DEFAULT

_FIELDS: Mapping[str, type] = {
    "component_name": str,
    "scheduler": str,
    "scheduler_args": dict,
    "scheduler_cfg": dict,
    "dryrun": bool,
    "wait": bool,
    "log": bool,
    "workspace": str,
    "parent_run_id": str,
    "tee_logs": bool,
    "component_args": dict,
    "component_args_str": list,
}


def request_from_stdin(options: Mapping[str, Any], stdin: TextIO) -> Request:
    """Read one JSON object that says everything; what else was said beside it is refused."""
    if any(value not in (None, ()) for value in options.values()):
        raise UserError("--stdin brings the whole request; leave the other words out")
    data = _checked(_read(stdin))
    words = data.get("component_args_str", [])
    return Request(
        words=(data["component_name"], *words),
        component_args=None if words else data.get("component_args", {}),
        scheduler=data.get("scheduler") or DEFAULT,
        cfg={**data.get("scheduler_args", {}), **data.get("scheduler_cfg", {})},
        workspace=data.get("workspace", ""),
        parent_run_id=data.get("parent_run_id"),
        dry=data.get("dryrun", False),
    )


def _read(stdin: TextIO) -> dict[str, Any]:
    try:
        data = json.load(stdin)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--stdin: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"--stdin: expected an object, got {type(data).__name__}")
    return data


def _checked(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that say something; null says nothing."""
    said = {key: value for key, value in data.items() if value is not None}
    for key in data:
        if key not in _FIELDS:
            hint = nearest(key, _FIELDS) or f"known: {', '.join(_FIELDS)}"
            raise UserError(f"--stdin: unknown field {shorten(key)!r}; {hint}")
    for key, value in said.items():
        if not isinstance(value, _FIELDS[key]):
            wanted, got = _FIELDS[key].__name__, type(value).__name__
            raise UserError(f"--stdin: {key}: expected {wanted}, got {got}")
    if not said.get("component_name"):
        raise UserError("--stdin: component_name is missing")
    for index, word in enumerate(said.get("component_args_str", [])):
        if not isinstance(word, str):
            problem = f"expected str, got {type(word).__name__}"
            raise UserError(f"--stdin: component_args_str[{index}]: {problem}")
    return said
