"""Each promise in the docs names a test or a record of evidence, and all of them exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "promises.md"
NAMED = re.compile(r"`((?:tests|docs/evidence)/[^`]+)`")


def rows() -> list[tuple[str, str]]:
    """Return each promise and what shows it: the second line of an item of the lists."""
    promised = PAGE.read_text().partition("## Not promised")[0]
    items = [item.split("<br>\n", 1) for item in promised.split("\n- ")[1:]]
    return [(item[0], item[-1]) for item in items]


def is_there(name: str) -> bool:
    """Tell whether a file exists, and the test that is named in it."""
    path, _, test = name.partition("::")
    file = ROOT / path
    return file.is_file() and (not test or f"def {test}(" in file.read_text())


@pytest.mark.parametrize(("promise", "shown"), rows(), ids=lambda text: text[:40])
def test_a_promise_is_shown_by_what_exists(promise: str, shown: str) -> None:
    names = NAMED.findall(shown)

    assert names, promise
    assert [name for name in names if not is_there(name)] == []


def test_the_page_has_promises() -> None:
    assert len(rows()) > 20


def test_a_test_that_does_not_exist_is_missed() -> None:
    assert not is_there("tests/house/test_promises.py::test_that_is_not_there")
    assert not is_there("docs/evidence/of-nothing.json")
