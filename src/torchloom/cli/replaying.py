"""Give a job the changes of another, as its audit log has them: the same steps, the same values."""

from pathlib import Path
from typing import Any

from torchloom.errors import UserError

_DONE = ("applied", "committed")


def read_changes(path: str) -> list[dict[str, Any]]:
    """Return the knob changes of an audit log that `loom inspect JOB audit --yaml` wrote."""
    import yaml

    try:
        log = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML: {str(error).splitlines()[0]}") from error
    try:
        done = [one for one in log if one["kind"] == "knob" and one["state"] in _DONE]
        return [_change(one) for one in done]
    except (TypeError, KeyError, AttributeError) as error:
        remedy = "write one with `loom inspect JOB audit --yaml`"
        raise UserError(f"{path} is no audit log; {remedy}") from error


def _change(one: dict[str, Any]) -> dict[str, Any]:
    payload = one["payload"]
    values = payload.get("values") or {payload["name"]: payload["value"]}
    return {
        "known": one["id"],
        "undo": payload.get("undo", ""),
        "values": values,
        "hold": bool(payload.get("hold")),
        "at": one["effective_step"],
        "reason": one["reason"] or f"replay of {one['job']}",
    }
