"""Two servers on one Postgres: a cursor of one is good at the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...harness.home import until
from ...harness.metric_senders import Teller
from ...harness.postgres_server import new_database, running_postgres
from ...harness.server_plane import PATIENCE, Plane, running
from ..listening import listening

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder: Path = tmp_path_factory.mktemp("plane")
    with running_postgres() as url, running(folder, new_database(url, "stream")) as started:
        yield started


def test_a_client_changes_servers_at_every_message_and_hears_each_once(plane: Plane) -> None:
    servers = [plane.start_server(), plane.start_server()]
    with Teller(plane, "shared") as teller:
        for step in range(1, 11):
            teller.tell(0, (step, {"loss": float(step)}), (step + 100, {"loss": 0.5}))
            teller.happens(1, "custom", step)
        until(teller.is_stored, PATIENCE)
        cursor, found = "start", []
        for number in range(30):
            path = f"/api/jobs/shared/stream?types=metric,event&after={cursor}"
            with listening(servers[number % 2], path, close_timeout=0.1) as client:
                said = client.message()
                while said["type"] == "event" and said["from"] == "weaver":
                    said = client.message()
            found.append(said)
            cursor = said["cursor"]

    metrics = sorted(each["step"] for each in found if each["type"] == "metric")
    events = sorted(each["step"] for each in found if each["type"] == "event")
    assert metrics == [*range(1, 11), *range(101, 111)]
    assert events == list(range(1, 11))
