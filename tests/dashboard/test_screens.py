"""The pictures in docs/screens: every view in every way is there, and they stay small."""

import struct
from itertools import product
from pathlib import Path

import pytest

from ..harness.dashboard_build import ROOT

FOLDER = ROOT / "docs" / "screens"
MOST = 5_000_000  # bytes, of all together


def size(path: Path) -> tuple[int, int]:
    """Return how wide and high a PNG says it is."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = struct.unpack(">II", head[16:])
    return wide, high


def test_there_is_a_picture_of_every_view_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "make"))
    from screens import SIZES, THEMES, VIEWS  # type: ignore[import-not-found]

    ways = product((view.name for view in VIEWS), SIZES, THEMES)
    expected = {f"{name}-{form}-{theme}.png": SIZES[form] for name, form, theme in ways}
    found = {path.name: size(path) for path in FOLDER.glob("*.png")}

    assert len(expected) == 48
    assert found == expected
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST
