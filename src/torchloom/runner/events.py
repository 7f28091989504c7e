"""Events of a runner's calls, as TorchX records them, for programs that send them somewhere.

A runner records its calls once a program has imported this module. The handler is that of the
destination `null`, which does nothing unless a package registers another one.
"""

import json
import logging
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from types import TracebackType
from typing import Any

from torchloom import settings
from torchloom.errors import NotFound
from torchloom.torchx import plugins

_MICRO = 1000  # nanoseconds in a microsecond


class SourceType(str, Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """Who called."""

    UNKNOWN = "<unknown>"
    INTERNAL = "INTERNAL"
    EXTERNAL = "EXTERNAL"


@dataclass
class TorchxEvent:
    """One call of a runner: what was asked, how long it took, what it raised."""

    session: str
    scheduler: str
    api: str
    app_id: str | None = None
    app_image: str | None = None
    app_metadata: dict[str, str] | None = None
    runcfg: str | None = None
    raw_exception: str | None = None
    source: SourceType = SourceType.UNKNOWN
    cpu_time_usec: int | None = None
    wall_time_usec: int | None = None
    start_epoch_time_usec: int | None = None
    workspace: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    exception_source_location: str | None = None

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        """Return the event as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def deserialize(data: "str | TorchxEvent") -> "TorchxEvent":
        """Return the event that JSON describes."""
        if isinstance(data, TorchxEvent):
            return data
        if not isinstance(data, str):
            raise TypeError(f"an event is JSON text, not {type(data).__name__}")
        fields: dict[str, Any] = json.loads(data)
        known = {each.value: each for each in SourceType}
        return TorchxEvent(
            **fields | {"source": known.get(fields.get("source", ""), SourceType.UNKNOWN)}
        )


class log_event:  # noqa: N801 - TorchX's name
    """Record a call of a runner: `with log_event("run", "local"): ...`."""

    def __init__(
        self,
        api: str,
        scheduler: str | None = None,
        app_id: str | None = None,
        app_image: str | None = None,
        app_metadata: dict[str, str] | None = None,
        runcfg: str | None = None,
        workspace: str | None = None,
    ) -> None:
        self._torchx_event = TorchxEvent(
            session_id(),
            scheduler or "",
            api,
            app_id=app_id,
            app_image=app_image,
            app_metadata=app_metadata,
            runcfg=runcfg,
            workspace=workspace,
        )

    def __enter__(self) -> "log_event":
        self._cpu, self._wall = time.process_time_ns(), time.perf_counter_ns()
        self._torchx_event.start_epoch_time_usec = time.time_ns() // _MICRO
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        event = self._torchx_event
        event.cpu_time_usec = (time.process_time_ns() - self._cpu) // _MICRO
        event.wall_time_usec = (time.perf_counter_ns() - self._wall) // _MICRO
        if kind is not None and error is not None:
            event.exception_type, event.exception_message = kind.__name__, str(error)
            event.raw_exception = "".join(traceback.format_exception(kind, error, trace))
            last = traceback.extract_tb(trace)[-1]
            place = {"filename": last.filename, "lineno": last.lineno, "name": last.name}
            event.exception_source_location = json.dumps(place)
        record(event)


def record(event: TorchxEvent, destination: str = "null") -> None:
    """Hand an event to the handler of a destination; one that is no JSON is logged and left out."""
    try:
        text = event.serialize()
    except (TypeError, ValueError):
        logging.getLogger(__name__).exception("an event of a runner cannot be recorded")
    else:
        _event_log(destination).info(text)


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler of a destination: of a package, `console` or `null`.

    Raises:
        NotFound: There is no such destination.
    """
    installed = plugins.registry().get(plugins.PluginType.EVENT_HANDLER)
    built_in = {"console": logging.StreamHandler, "null": logging.NullHandler}
    known: dict[str, Callable[[], logging.Handler]] = {**built_in, **installed}
    if destination not in known:
        raise UnknownDestination("destination of events", destination, known)
    return known[destination]()


class UnknownDestination(NotFound, KeyError):
    """No handler of events has this name."""

    code = "unknown_event_destination"
    __str__ = NotFound.__str__  # KeyError would print the repr of the message


@cache
def session_id() -> str:
    """Return the id of this process's calls: that of the run it is in, else one of its own."""
    return settings.environment().get("TORCHX_INTERNAL_SESSION_ID") or str(uuid.uuid4())


@cache
def _event_log(destination: str) -> logging.Logger:
    log = logging.getLogger(f"torchx-events-{destination}")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(get_logging_handler(destination))
    return log
