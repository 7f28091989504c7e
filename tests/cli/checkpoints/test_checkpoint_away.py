"""`loom checkpoint` and a plane elsewhere: it lists and removes, the store is read where it is."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.plane.certificates import certificate

from ...harness.metric_senders import Teller
from ...harness.server_plane import Plane, Server, running
from ...server.routes.test_checkpoints import Saving
from ..jobs.test_remote import Person
from ..test_json import problems

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with running(tmp_path_factory.mktemp("plane")) as started:
        yield started


@pytest.fixture(scope="module")
def server(plane: Plane) -> Server:
    made = certificate(plane.home / "plane", "127.0.0.1")
    words = ["--tls-cert", made.chain, "--tls-key", made.key, "--tls-ca", made.authority]
    return plane.start_server(*map(str, words))


@pytest.fixture
def saving(plane: Plane, server: Server) -> Iterator[Saving]:
    with Teller(plane, "saving", ranks=1) as teller:
        yield Saving(plane, teller)


def test_a_plane_elsewhere_lists_and_removes_and_keeps_the_newest(
    plane: Plane, server: Server, saving: Saving, tmp_path: Path
) -> None:
    bob = Person(tmp_path / "bob", plane, server, "bob", "operator")
    with server.client(verify=False) as admin:
        saving.save(admin, 10, 20)
    over = threading.Event()

    def answering() -> None:
        while not over.wait(0.02):
            saving.answer()

    listed = bob.loom("checkpoint", "ls", "saving", "--json")
    agent = threading.Thread(target=answering)
    agent.start()
    try:
        gone = bob.loom("checkpoint", "rm", "saving", "10", "-y", "--reason", "old")
        refused = bob.loom("checkpoint", "rm", "saving", "20", "-y")
    finally:
        over.set()
        agent.join()
    left = bob.loom("checkpoint", "ls", "saving")
    every = bob.loom("checkpoint", "ls", "saving", "--all", "--json")

    assert [(one["step"], one["state"], one["bytes"]) for one in json.loads(listed[1])] == [
        (20, "committed", 7),
        (10, "committed", 7),
    ]
    assert problems("checkpoint-ls", json.loads(every[1])) == []
    assert gone == (0, "checkpoint of step 10 removed\n", "")
    assert (refused[0], refused[1]) == (2, "")
    assert "step 20 is the newest" in refused[2]
    assert [line.split()[0] for line in left[1].splitlines()] == ["STEP", "20"]
    assert [(one["step"], one["state"]) for one in json.loads(every[1])] == [
        (20, "committed"),
        (10, "removed"),
    ]


def test_what_reads_the_store_says_where_it_must_be_run(
    plane: Plane, server: Server, tmp_path: Path
) -> None:
    ann = Person(tmp_path / "ann", plane, server, "ann", "viewer")

    code, out, err = ann.loom("checkpoint", "verify", "saving", "--all")

    assert (code, out) == (2, "")
    assert (
        "`checkpoint verify`, which reads the store directly, is not available from a plane" in err
    )
    assert "ask on its host" in err
