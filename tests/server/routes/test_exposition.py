"""What Prometheus reads, read by its own parser."""

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from torchloom.server.access_log import Counts, Passing
from torchloom.server.routes.prometheus import PlaneReading, ScrapeCollector, exposition

HOSTILE = 'a"b\\c\nd{}'
RECORDED = Path(__file__).with_name("recordings") / "metrics.txt"
PLANE = PlaneReading(
    status={
        "epoch": 3,
        "agents": 2,
        "ranks": 5,
        "backlog": 0,
        "stored": 123456789,
        "dropped": {"too_old": 7, "bad frame": 1},
    },
    states={"RUNNING": 2, "COMPLETED": 40},
    jobs=[
        {"id": "j1", "name": HOSTILE, "step": 1000},
        {"id": "j2", "name": "gpt", "step": None},
    ],
    ranks=[
        [
            {"role": "trainer", "rank": 0, "step_seconds": 0.125},
            {"role": "trainer", "rank": 1, "step_seconds": None},
        ],
        [{"role": "w", "rank": rank, "step_seconds": 0.5} for rank in range(70)],
    ],
    saved={"COMMITTED": 4},
    last_saved={"j1": 1763476800.25},
)


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for found in text_string_to_metric_families(text)
        for sample in found.samples
    }


def types(text: str) -> set[str]:
    return {line for line in text.splitlines() if line.startswith("# TYPE")}


class Route:
    path = "/api/jobs/{id}"


def asked(counts: Counts, scope: dict[str, Any], *said: dict[str, Any]) -> None:
    """Have an app answer a request with these words."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in said:
            await send(message)

    async def send(message: Any) -> None:
        pass

    asyncio.run(Passing(app, counts.count)(scope, None, send))  # type: ignore[arg-type]


def read(counts: Counts, plane: PlaneReading | None = None) -> str:
    return exposition(ScrapeCollector(counts, 4, plane)).decode()


def test_what_is_scraped_is_what_was_recorded() -> None:
    """The recording is of the text that was once formatted without the library."""
    counts = Counts()
    for seconds in (0.001, 0.02, 0.02, 7.0, 100.0):
        counts.note("GET", "/api/jobs/{id}", 200, seconds)
    counts.note("WS", "other", 101, 0.3)

    text = read(counts, PLANE)

    assert parsed(text) == parsed(RECORDED.read_text())
    assert types(text) == types(RECORDED.read_text())


def test_without_a_weaver_the_server_is_shown_alone() -> None:
    assert parsed(read(Counts())) == {
        ("torchloom_weaver_up", ()): 0.0,
        ("torchloom_stream_listeners", ()): 4.0,
    }


def test_names_of_strangers_stay_labels() -> None:
    found = parsed(read(Counts(), PLANE))

    assert found["torchloom_job_step", (("job", "j1"), ("name", HOSTILE))] == 1000.0


def test_requests_are_counted_by_template_method_and_status() -> None:
    counts = Counts()
    started = {"type": "http.response.start", "status": 200}

    asked(counts, {"type": "http", "method": "GET", "route": Route()}, started)
    asked(counts, {"type": "http", "method": "GET", "route": Route()}, started)
    asked(counts, {"type": "http", "method": "BREW"}, {**started, "status": 404})
    asked(counts, {"type": "websocket", "route": Route()}, {"type": "websocket.accept"})

    found = parsed(read(counts))
    total = "torchloom_http_requests_total"
    path = ("path", "/api/jobs/{id}")
    assert {key: value for key, value in found.items() if key[0] == total} == {
        (total, (("method", "GET"), path, ("status", "200"))): 2.0,
        (total, (("method", "other"), ("path", "other"), ("status", "404"))): 1.0,
        (total, (("method", "WS"), path, ("status", "101"))): 1.0,
    }
    seconds = "torchloom_http_request_seconds"
    assert found[f"{seconds}_count", (("method", "GET"), path)] == 2.0
    assert found[f"{seconds}_bucket", (("le", "+Inf"), ("method", "GET"), path)] == 2.0
    assert found[f"{seconds}_bucket", (("le", "10.0"), ("method", "GET"), path)] == 2.0


def test_buckets_hold_all_that_were_quicker() -> None:
    counts = Counts()

    for seconds in (0.001, 0.02, 0.02, 7.0, 100.0):
        counts.note("GET", "/", 200, seconds)

    (durations,) = counts.durations.values()
    assert dict(durations.cumulative()) == {
        "0.005": 1,
        "0.01": 1,
        "0.025": 3,
        "0.05": 3,
        "0.1": 3,
        "0.25": 3,
        "0.5": 3,
        "1.0": 3,
        "2.5": 3,
        "5.0": 3,
        "10.0": 4,
        "+Inf": 5,
    }
