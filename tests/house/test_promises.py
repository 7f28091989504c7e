"""Each promise in the docs names a test or a record of evidence, and all of them exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "promises.md"
SECURITY = ROOT / "docs" / "security.md"
NAMED = re.compile(r"`((?:tests|docs/evidence)/[^`]+)`")
_FILE = re.compile(r"`(?:tests/)?([\w/]*test_\w+\.py)`")
_PART = re.compile(r"`\.*([a-z0-9]+(?:_[a-z0-9]+){3,})\.*`")  # of a test's name
_TEST = re.compile(r"def (test_\w+)\(")


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


def test_what_shows_that_an_attack_fails_exists() -> None:
    text = SECURITY.read_text()
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    files = "\n".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in paths)
    names = "\n".join(name for path in paths for name in _TEST.findall(path.read_text()))

    asked, parts = set(_FILE.findall(text)), set(_PART.findall(text))

    assert {name for name in asked if f"/{name}\n" not in files} == set()
    assert {part for part in parts if part not in names} == set()
    assert min(len(asked), len(parts)) > 30
    own = {path.name for path in (ROOT / "tests" / "adversary").glob("test_*.py")}
    assert own - {Path(name).name for name in asked} == set(), "no attack names this file"


def test_the_page_has_promises() -> None:
    assert len(rows()) > 20


def test_a_test_that_does_not_exist_is_missed() -> None:
    assert not is_there("tests/house/test_promises.py::test_that_is_not_there")
    assert not is_there("docs/evidence/of-nothing.json")
