"""Calls of a runner are recorded for programs that want it, as TorchX records them."""

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from torchloom.runner import events
from torchloom.specs.api import UnknownSchedulerException

from .test_runner import app, over


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[events.TorchxEvent] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(events.TorchxEvent.deserialize(record.getMessage()))


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Keep the events of the default destination."""
    handler = Kept()
    events.record(events.TorchxEvent("s", "local", "first"))
    log = logging.getLogger("torchx-events-null")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@pytest.mark.usefixtures("home")
def test_calls_are_recorded_with_what_they_are_about(kept: Kept) -> None:
    runner = over()
    handle = runner.schedule(runner.dryrun(app(), "memory", {"queue": "q"}))
    runner.cancel(handle)

    assert [(each.api, each.scheduler, each.app_id) for each in kept.events] == [
        ("dryrun", "", None),
        ("schedule", "memory", None),
        ("cancel", "memory", "id-1"),
    ]
    assert all(each.wall_time_usec is not None for each in kept.events)
    assert len({each.session for each in kept.events}) == 1


@pytest.mark.usefixtures("home")
def test_what_a_call_raises_is_in_its_event_and_raised(kept: Kept) -> None:
    with pytest.raises(UnknownSchedulerException):
        over().dryrun(app(), "nowhere")

    (event,) = kept.events
    assert event.exception_type == "UnknownSchedulerException"
    assert "no scheduler 'nowhere'" in str(event.exception_message)
    assert "Traceback" in str(event.raw_exception)
    assert json.loads(str(event.exception_source_location))["name"] == "scheduler"


@pytest.mark.usefixtures("home")
def test_nothing_is_recorded_for_programs_that_do_not_ask(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torchloom.runner.events")

    over().dryrun(app(), "memory", {"queue": "q"})

    assert kept.events == []


def test_an_event_is_json_and_comes_back() -> None:
    event = events.TorchxEvent("s", "local", "run", source=events.SourceType.INTERNAL)

    assert events.TorchxEvent.deserialize(str(event)) == event
    assert events.TorchxEvent.deserialize(event) is event
    with pytest.raises(TypeError, match="an event is JSON text, not int"):
        events.TorchxEvent.deserialize(3)  # type: ignore[arg-type]


def test_a_destination_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no destination of events 'consle'; did you mean 'console'"):
        events.get_logging_handler("consle")
