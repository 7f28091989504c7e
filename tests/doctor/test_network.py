"""Ports and names: this host's own addresses, and a name server that never answers."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.doctor import cluster
from torchloom.doctor.findings import CheckState

LOOK = """
import json
from pathlib import Path
from torchloom.doctor.checks import HostPlace as Place
from torchloom.doctor import cluster as network
place = Place({}, "localhost", Path("/"), Path("/"), "ada")
found = [*network.ports(place), *network.names(place)]
print(json.dumps([(each.name, each.state, each.text, each.remedy) for each in found]))
"""


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A name server that hears every question and answers none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.77", 53))
        yield "127.0.0.77"


def test_we_can_meet_on_the_loopback_but_not_at_an_address_of_others() -> None:
    assert cluster.meet("127.0.0.1") == ""
    assert cluster.meet("198.51.100.1") == "Cannot assign requested address"


def test_a_host_whose_name_is_another_hosts_address_is_a_problem(place: Any) -> None:
    (found,) = cluster.ports(place(own_host="198.51.100.1"))

    assert (found.state, found.text) == (
        CheckState.PROBLEM,
        "198.51.100.1: Cannot assign requested address",
    )


@pytest.mark.process
@pytest.mark.needs("netns")
def test_a_host_with_nothing_but_a_loopback_is_told_so() -> None:
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    done = subprocess.run([*words, sys.executable, "-c", LOOK], capture_output=True, text=True)

    name, state, text, _ = json.loads(done.stdout)[0]

    assert (name, state) == ("ports", "note")
    assert text == "the loopback works; this host has no other address"


@pytest.mark.process
@pytest.mark.needs("mount")
def test_a_name_server_that_never_answers_is_a_note_with_the_remedy(
    black_hole: str, tmp_path: Path
) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"nameserver {black_hole}\n")
    inside = 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", inside, "sh", conf, sys.executable, "-c", LOOK]
    done = subprocess.run(words, capture_output=True, text=True)

    name, state, text, remedy = json.loads(done.stdout)[-1]

    assert (name, state) == ("dns", "note")
    assert text.endswith("no answer in 3 s")
    assert "RES_OPTIONS='timeout:1 attempts:1'" in remedy
