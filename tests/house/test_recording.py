"""The recording of the demo shows what a terminal was sent, and is drawn from nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
sys.path.insert(0, str(ROOT / "make"))

import recording  # noqa: E402


def header() -> dict[str, object]:
    """Return the first line of the recording."""
    facts: dict[str, object] = json.loads((PICTURES / "demo.cast").open().readline())
    return facts


def recorded() -> list[str]:
    """Return the lines that the terminal was sent, without their styles."""
    events = (PICTURES / "demo.cast").read_text().splitlines()[1:]
    text = "".join(json.loads(event)[2] for event in events)
    return re.sub(r"\x1b\[\d+m", "", text).replace("\r", "").splitlines()


def test_the_picture_is_what_the_recording_gives() -> None:
    words = [sys.executable, str(ROOT / "make/recording.py"), "--check"]

    assert subprocess.run(words, check=False).returncode == 0, "run make/recording.py --draw"


def test_the_picture_has_each_line_of_the_recording_and_no_other() -> None:
    root = ElementTree.parse(PICTURES / "demo.svg").getroot()
    rows = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    lines = [line[at : at + 80] for line in recorded() for at in range(0, len(line), 80)]

    assert rows[1:] == lines
    assert rows[0].endswith("; waits are shortened")


def test_the_picture_says_what_it_was_made_from() -> None:
    facts = header()
    said = ElementTree.parse(PICTURES / "demo.svg").getroot().findtext(f"{SVG}desc") or ""

    assert str(facts["command"]).startswith("make/demo.py")
    assert f"{facts['command']}, commit {facts['commit']}, 20" in said


def test_the_picture_is_small_and_fetches_nothing() -> None:
    text = (PICTURES / "demo.svg").read_text()

    assert len(text) < 300_000
    assert "href" not in text
    assert "url(" not in text
    assert text.count("//") == text.count("//www.w3.org/2000/svg") + "\n".join(recorded()).count(
        "//"
    )


def test_the_loop_takes_thirty_to_forty_seconds() -> None:
    found = re.search(r"animation-duration: ([\d.]+)s", (PICTURES / "demo.svg").read_text())

    assert found
    assert 30 <= float(found[1]) <= 40


def test_what_is_more_than_lines_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="more than write lines"):
        list(recording.rows_of([[0.0, "o", "50%\x1b[2K\r\n"]], 80))


def test_a_long_line_is_wrapped_as_a_terminal_does() -> None:
    rows = list(recording.rows_of([[1.5, "o", "\x1b[1m" + "a" * 79 + "\x1b[0mbc\r\n"]], 80))

    first = recording.Row(1.5, (("a" * 79, "b"), ("b", "")))
    assert rows == [first, recording.Row(1.5, (("c", ""),))]


def test_a_long_wait_is_shortened_and_an_act_is_followed_by_a_pause() -> None:
    texts = [(1.0, "one\r\n"), (99.0, "two\r\n"), (99.5, "\r\n"), (99.6, "three\r\n")]

    rows = recording.paced(recording.rows_of([[at, "o", text] for at, text in texts], 80))

    assert [(row.at, row.text) for row in rows] == [
        (1.0, "one"),
        (2.5, "two"),
        (4.7, ""),
        (4.8, "three"),
    ]
