"""The house words: the private language of earlier versions does not return.

The banned words are those of the style guide's table. They count in comments, docstrings, messages
and prose, and as parts of identifiers (`_goes_on`, `ToldTwice`). Counts are printed by room.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "torchloom"
BANNED = (
    *("whoever", "somebody", "nobody", "manieth", "by heart", "in vain", "errands?", "farewells?"),
    *("crews?", "shelf", "shelves", "hears?", "heard", "told", "tells", "beats", "riddles?"),
    *("gone on", "goes on", "go on", "whose turn"),
)
LONGEST_SUBJECT, SUBJECTS = 60, 50
OLDER = ("Name three imports for what they are; fuzz of the launch link",)  # before the rule

# By file: words that are not ours to choose, and why. They count in no room.
_CODE = "an error code, which programs compare"
_REASON = "a reason that is stored with a job"
_FIELD = "a field of the HTTP API and of the weaver's replies"
_MOVED = "the name of a module as it was"
EXCEPTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "src/torchloom/bus/api.py": (("nobody_answers", _CODE),),
    "src/torchloom/launch/supervisor/process.py": (("run_goes_on", _CODE),),
    "src/torchloom/worker/dist/stores.py": (("nobody_came", _CODE),),
    "src/torchloom/schedulers/lsf_scheduler.py": (("dependency_in_vain", _REASON),),
    "src/torchloom/weaver/commands/driver.py": (('"somebody"', _REASON),),
    "src/torchloom/worker/run/agreement.py": (("told-", "a key of the generation's store"),),
    "src/torchloom/server/models/stream.py": (("heard_at", _FIELD),),
    "src/torchloom/server/stream/topics/cluster.py": (("heard_at", _FIELD), ('"heard"', _FIELD)),
    "src/torchloom/weaver/api/queue.py": (('"heard"', _FIELD),),
    "docs/weaver.md": (("`heard`", _FIELD),),
    "docs/internals/moved.md": tuple(
        (f"`{name}`", _MOVED)
        for name in (
            "launch.crew",
            "launch.errands",
            "launch.farewell",
            "weaver.errands",
            "weaver.shelf",
        )
    ),
    "dashboard/src/cluster/big.ts": (("heard_at", _FIELD),),
    "dashboard/src/cluster/node-panel.tsx": (("heard_at", _FIELD),),
}

_WORDS = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WRAP = re.compile(r"\s*\n[ \t]*(?:#|//|\*|>|-)?[ \t]*")


def banned_in(text: str) -> list[str]:
    """Return the banned words of a text, also in identifiers and across line breaks."""
    flat = _WRAP.sub(" ", _CAMEL.sub(" ", text.replace("_", " ")))
    return [found.group().lower() for found in _WORDS.finditer(flat)]


def _files(room: str) -> Iterator[Path]:
    if room == "docs":
        yield from (ROOT / "docs").rglob("*.md")
    elif room == "dashboard":
        yield from (ROOT / "dashboard" / "src").rglob("*.ts")
        yield from (ROOT / "dashboard" / "src").rglob("*.tsx")
    elif room == "torchloom":
        yield from PACKAGE.glob("*.py")
    elif room.endswith(".md"):
        yield ROOT / room
    else:
        yield from (PACKAGE / room).rglob("*.py")


def _excepted(path: Path, text: str) -> str:
    for words, _ in EXCEPTIONS.get(path.relative_to(ROOT).as_posix(), ()):
        text = text.replace(words, "")
    return text


ROOMS = (
    *sorted(one.name for one in PACKAGE.iterdir() if (one / "__init__.py").is_file()),
    *("torchloom", "docs", "dashboard", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_speaks_plainly(room: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in sorted(_files(room))
        if (words := banned_in(_excepted(path, path.read_text())))
    }
    count = sum(map(len, found.values()))
    print(f"{room}: {count}")

    assert found == {}


def test_every_exception_is_still_there() -> None:
    for name, pairs in EXCEPTIONS.items():
        text = (ROOT / name).read_text()
        assert all(why and words in text and banned_in(words) for words, why in pairs), name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("what the weaver has told", ["told"]),
        ("self._goes_on = True", ["goes on"]),
        ("class CheckpointErrands:", ["errands"]),
        ("    # the job goes\n    # on later", ["goes on"]),
        ("heartbeats of a dashboard, shelfless, hearing", []),
    ],
)
def test_words_are_found_where_they_hide(text: str, found: list[str]) -> None:
    assert banned_in(text) == found


def test_commit_subjects_are_short() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git history")
    words = ["git", "log", "--no-merges", f"-{SUBJECTS}", "--format=%s"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git history")

    long = [one for one in done.stdout.splitlines() if len(one) > LONGEST_SUBJECT]

    assert [subject for subject in long if subject not in OLDER] == []
