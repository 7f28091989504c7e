"""How hosts that share a state folder find the plane that serves them."""

from pathlib import Path

import pytest

from torchloom.client import served

TOLD = {"nats": "tls://10.0.0.1:4222", "authority": "/ca.pem", "url": "u", "host": "a", "pid": 7}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))
    (tmp_path / "plane").mkdir()
    return tmp_path / "plane"


def test_what_a_plane_says_is_found_by_its_owner_alone() -> None:
    assert served.found() is None

    served.announce(TOLD)

    assert served.found() == TOLD
    assert served.place().stat().st_mode & 0o777 == 0o600


def test_a_plane_takes_back_its_own_word_and_no_other() -> None:
    served.announce(TOLD)

    served.withdraw("b", 7)
    served.withdraw("a", 8)

    assert served.found() == TOLD
    served.withdraw("a", 7)
    assert served.found() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nats": ""}'])
def test_half_a_word_is_none(text: str) -> None:
    served.place().write_text(text)

    assert served.found() is None


def test_without_tls_nobody_is_asked_over_http() -> None:
    served.announce({**TOLD, "url": "unix:///run/weaver.sock"})

    assert served.client() is None
