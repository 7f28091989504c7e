"""Read what Alertmanager sends to a webhook: which devices are bad, and which well again."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.rules.drmap import DeviceState

_UUID = ("device_uuid", "UUID", "uuid", "gpu_uuid", "device")  # labels that may name a device
_STATE = "loom_state"  # a label by which a rule says what its alert means: failed or draining
_WORDS = ("summary", "description", "message")
_MOST = 1000  # alerts of one message


class NoAlerts(ValueError):
    """The bytes are not what Alertmanager sends."""


@dataclass(frozen=True, slots=True)
class DeviceAlert:
    """What one alert says of one device."""

    device: str
    state: DeviceState
    source: str
    reason: str


def read_alerts(data: bytes) -> list[DeviceAlert]:
    """Return what is said of devices; alerts about other things are nobody's here."""
    try:
        message = json.loads(data)
        alerts = message["alerts"][:_MOST]
        return [found for alert in alerts for found in _read(alert)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NoAlerts(str(error)) from error


def _read(alert: Mapping[str, Any]) -> Iterator[DeviceAlert]:
    labels = alert["labels"]
    device = next((labels[name] for name in _UUID if labels.get(name)), None)
    if not isinstance(device, str):
        return
    state = _state(alert.get("status"), labels.get(_STATE))
    notes = alert.get("annotations") or {}
    words = next((notes[name] for name in _WORDS if notes.get(name)), "")
    name = str(labels.get("alertname") or "alert")
    yield DeviceAlert(device, state, "alertmanager", f"{name}: {words}" if words else name)


def _state(status: Any, wanted: Any) -> DeviceState:
    if status == "resolved":
        return DeviceState.HEALTHY
    if wanted == DeviceState.DRAINING:
        return DeviceState.DRAINING
    return DeviceState.FAILED
