"""Devices, and what somebody who watches hardware says of them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchloom.server.models.common import Answer, Request, Text, Uuid
from torchloom.server.paging import Page
from torchloom.server.schema import Schema


class Device(Answer, schema="Device"):
    """An accelerator or a CPU slot, and who uses it."""

    uuid: str
    node: str
    kind: str
    index: int
    memory: int
    state: str
    source: str
    reason: str
    changed_at: str | None
    processes: list[str]


class Devices(Page, schema="Devices"):
    version: int
    items: list[Device]


class DeviceRequest(Request, schema="DeviceRequest"):
    """What somebody who watches hardware says of a device."""

    state: Literal["healthy", "draining", "failed"]
    reason: Text = ""
    new: bool = Field(default=False, description="make the device known if it is not")


class DevicePreviewRequest(Request, schema="DevicePreviewRequest"):
    """What somebody is about to say of devices."""

    devices: Annotated[list[Uuid], Field(min_length=1, max_length=1024)]
    state: Literal["healthy", "draining", "failed"]
    reason: Text = ""


class DevicePreview(Answer, schema="DevicePreview"):
    """What would come of it; nothing has."""

    state: Literal["healthy", "draining", "failed"]
    devices: list[str] = Field(description="those that are not so yet")
    summary: list[str] = Field(description="a line for each job that it concerns")
    warnings: list[str]
    command: str = Field(description="the `loom` commands that say the same")


class Alerts(Schema, schema="Alerts"):
    """What Alertmanager sends to a webhook, as far as it is read."""

    alerts: list[dict[str, Any]]


class AlertsTaken(Answer, schema="AlertsTaken"):
    """Of which devices alerts said something."""

    devices: list[str]
