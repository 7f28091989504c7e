"""The weaver is told of news, and nobody waits or fails where there is none."""

import socket
from pathlib import Path

import pytest

from torchloom import settings
from torchloom.launch.records.record_writer import CHANGES_SOCKET, notify_weaver
from torchloom.unix import reachable


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))  # a plane of the user's own says where
    (settings.plane_dir() / CHANGES_SOCKET).parent.mkdir(parents=True)
    return settings.plane_dir() / CHANGES_SOCKET


def test_a_weaver_hears_which_run_has_news(place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as weaver:
        weaver.bind(str(place))

        notify_weaver("train-1")

        assert weaver.recv(100) == b"train-1"


def test_a_folder_may_lie_deeper_than_a_sockets_name_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("deep" * 30)))
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))
    (tmp_path / ("deep" * 30)).mkdir()
    place = settings.plane_dir() / CHANGES_SOCKET
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as weaver:
        with reachable(place) as address:
            weaver.bind(address)

        notify_weaver("train-1")

        assert weaver.recv(100) == b"train-1"


def test_without_a_weaver_nothing_happens(place: Path) -> None:
    notify_weaver("train-1")

    assert not place.exists()


@pytest.mark.process
def test_a_weaver_that_does_not_listen_keeps_nobody(place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as weaver:
        weaver.bind(str(place))

        for _ in range(10_000):  # more than any queue holds
            notify_weaver("train-1")

        assert weaver.recv(100) == b"train-1"
