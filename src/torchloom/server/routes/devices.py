"""Devices: the list, their users, and reports on their health."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path

from torchloom.errors import shorten
from torchloom.server import impact
from torchloom.server.models import cluster as models
from torchloom.server.models.common import Key
from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import BODY, ApiProblem, declared
from torchloom.server.security.auth import Who
from torchloom.server.text import whole
from torchloom.weaver.health.devices import NoAlerts, read_alerts

_LONGEST = 300  # letters of a uuid
Uuid = Annotated[str, Path(min_length=1, max_length=_LONGEST)]
router = APIRouter(tags=["devices"])


@router.get("/api/devices", response_model=models.Devices, responses=declared(503))
async def devices(access: AccessDep) -> Any:
    """Every device of every node, with the ranks that use it."""
    found = await access.link.ask("devices")
    return {"version": found["version"], "items": found["devices"]}


@router.post(
    "/api/devices/alerts", response_model=models.AlertsTaken, responses=declared(400, 413, 422, 503)
)
async def alerts(
    sent: Annotated[dict[str, Any], Body(json_schema_extra={"required": ["alerts"]})],
    access: AccessDep,
    who: Who,
    key: Key = None,
) -> Any:
    """Handle a webhook of Alertmanager; alerts about other things are ignored."""
    try:
        found = read_alerts(json.dumps(sent).encode())
    except NoAlerts as error:
        remedy = "send what Alertmanager sends to a webhook: version 4"
        raise ApiProblem(422, "bad_alerts", f"not alerts: {error}", BODY, remedy) from error
    for alert in found:
        facts: dict[str, Any] = {"device": alert.device, "state": str(alert.state), "new": True}
        facts |= {"source": alert.source, "reason": shorten(alert.reason, 1000)}
        await access.link.ask("device_event", author=who.user, **facts)
    return {"devices": [alert.device for alert in found]}


@router.post(
    "/api/devices/preview",
    response_model=models.DevicePreview,
    responses=declared(400, 404, 409, 413, 422, 503),
)
async def preview(report: models.DevicePreviewRequest, access: AccessDep, key: Key = None) -> Any:
    """What a report on devices would do to ranks. Changes nothing."""
    names = list(dict.fromkeys(report.devices))
    found = await access.link.ask("device_outlook", devices=names, state=report.state)
    outlook = impact.device_outlook(report.state, found["devices"], found["jobs"])
    command = impact.device_command_line(report.state, found["devices"], report.reason)
    return whole({**outlook, "command": command})


@router.post(
    "/api/devices/{uuid:path}/events",
    response_model=models.Device,
    responses=declared(400, 404, 409, 413, 422, 503),
)
async def event(
    uuid: Uuid, report: models.DeviceRequest, access: AccessDep, who: Who, key: Key = None
) -> Any:
    """Report that a device failed, is healthy again, or is to be drained."""
    facts = report.model_dump()
    return await access.link.ask("device_event", device=uuid, source=who.user, **facts)
