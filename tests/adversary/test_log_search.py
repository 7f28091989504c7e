"""Large logs are searched page by page, whatever the pattern, and nobody else waits for it."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from torchloom.specs.api import AppState

from ..harness.home import allowed
from ..harness.metric_senders import Launched, Teller
from ..harness.server_plane import Plane, Server, running

pytestmark = pytest.mark.process
BLOCK = "".join(
    f"step {n:07d} loss {n / 7:.4f} lr 0.0010 some words to fill\n" for n in range(9000)
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started:
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    return plane.start_server()


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def large(plane: Plane) -> Iterator[str]:
    """Give a job with more than 320 MB of logs, and two lines at the end of each rank's."""
    with Teller(plane, "large") as teller:
        launched = Launched(plane, teller.job)
        for path in printed(launched, 320 << 20):
            with path.open("a") as file:
                file.write("the needle is here\nlast words\n")
        launched.write(AppState.SUCCEEDED)
        teller.ends("COMPLETED", "ranks_ended")
        yield teller.job


def printed(launched: Launched, size: int) -> list[Path]:
    """Write logs of so many bytes, as two ranks would, with nothing of ours between."""
    paths = []
    for rank in range(2):
        launched.print(rank, "stdout", BLOCK)  # the folder and its notes are as a launch's
        path = launched.folder / "logs" / "trainer" / "0" / str(rank) / "stdout.log"
        with path.open("ab") as file:
            for _ in range(size // 2 // len(BLOCK)):
                file.write(BLOCK.encode())
        paths.append(path)
    return paths


def pages(client: httpx.Client, job: str, **words: str) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        asked = {**words, **({"cursor": cursor} if cursor else {})}
        answer = client.get(f"/api/jobs/{job}/logs", params=asked)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        yield page
        cursor = page["next"]
        if cursor is None:
            return


def test_what_is_at_the_end_of_a_large_log_is_found_and_others_are_served_meanwhile(
    server: Server, admin: httpx.Client, large: str
) -> None:
    with ThreadPoolExecutor() as pool, server.client() as other:
        search = pool.submit(lambda: list(pages(admin, large, regex=r"the needle is \w+")))
        waits = []
        while not search.done():
            began = time.monotonic()
            other.get("/healthz").raise_for_status()
            waits.append(time.monotonic() - began)

    found = search.result()
    items = [item for page in found for item in page["items"]]
    assert [(item["rank"], item["message"]) for item in items] == [
        (0, "the needle is here"),
        (1, "the needle is here"),
    ]
    assert found[-1]["read"] == found[-1]["bytes"] > 320 << 20
    assert max(waits) < allowed(1.0)


def test_a_search_without_a_text_to_look_for_comes_page_by_page_and_says_how_far_it_is(
    admin: httpx.Client, large: str
) -> None:
    """Every line has to be tried: a page ends with its time, has nothing, and goes on."""
    found = pages(admin, large, regex=r"^[^s]\w+ \w{4}[sz]$")

    first, second = next(found), next(found)

    assert (first["items"], second["items"]) == ([], [])
    assert 0 < first["read"] < second["read"] <= second["bytes"]


def test_pages_of_a_search_have_every_match_once_and_by_time(
    plane: Plane, admin: httpx.Client
) -> None:
    with Teller(plane, "mixed") as teller:
        launched = Launched(plane, teller.job)
        for number in range(300):
            rank, stream = number % 2, ("stdout", "stderr")[number % 3 == 0]
            launched.print(rank, stream, f"{number} {'hit' if number % 7 else 'miss'}\n")
        launched.write(AppState.SUCCEEDED)
        teller.ends("COMPLETED", "ranks_ended")

        for pattern in ("hit", "h.t", "(?i)HIT", "[0-9] hit$|^never"):
            found = list(pages(admin, teller.job, regex=pattern, limit="17"))

            items = [item for page in found for item in page["items"]]
            said = sorted((item["rank"], item["stream"], item["message"]) for item in items)
            wanted = [line for line in launched.lines() if re.search("hit", line[2])]
            assert said == sorted(wanted), pattern
            times = [item["time"] for item in items]
            assert times == sorted(times)
            assert all(len(page["items"]) <= 17 for page in found)
