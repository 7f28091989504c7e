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
    *("gone on", "goes on", "go on", "whose turn", "life", "chances?", "ledgers?", r"regroup\w*"),
    *("pok(?:e|es|ed|ing)", "births?", "beat"),
)
LONGEST_SUBJECT, SUBJECTS = 60, 50
OLDER = ("Name three imports for what they are; fuzz of the launch link",)  # before the rule

# Names on the wire, in files and in databases, which other versions read. They count in no room.
NAMES = {
    r"\.life\b|\blife(?=: int|=)|[\"'`]life[\"'`]|`life: \d": "the number of a rank's process",
    r"\b(?:life_ended|end_life)\b": "an event of a run, and a message of its launch",
    r"\bLOOM_(?:LIFE|LEDGER)\b": "variables of a rank",
    r'tag="(?:EndLife|Regroup|Beat)"|`Beat`': "tags of messages",
    r"[\"'`]regroupings?[\"'`]": "a table of state.db, and an event of a job",
    r"\.beat\b|[\"']beat[\"']": "a subject of the bus, and a message of the WebSocket",
    r"[\"'`]chance[\"'`]": "a field of the step digest log",
}
# By file: words that are not ours to choose, and why. They count in no room.
_CODE = "an error code, which programs compare"
_REASON = "a reason that is stored with a job"
_FIELD = "a field of the HTTP API and of the weaver's replies"
_TEST = "the name of a test"
EXCEPTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "src/torchloom/bus/api.py": (("nobody_answers", _CODE),),
    "src/torchloom/launch/supervisor/process.py": (("run_goes_on", _CODE),),
    "src/torchloom/worker/dist/stores.py": (("nobody_came", _CODE),),
    "src/torchloom/launch/records/parcel.py": (("|LIFE|", "a variable of a rank"),),
    "src/torchloom/launch/records/record_writer.py": (('"pokes"', "the name of a socket"),),
    "src/torchloom/launch/host/shared_memory.py": (("life.handed-on", "the name of a file"),),
    "src/torchloom/weaver/store/state_tables.py": (("regroupings =", "a table of state.db"),),
    "src/torchloom/schedulers/lsf_scheduler.py": (("dependency_in_vain", _REASON),),
    "src/torchloom/worker/run/agreement.py": (("told-", "a key of the generation's store"),),
    "src/torchloom/server/models/stream.py": (("heard_at", _FIELD),),
    "src/torchloom/server/stream/topics/cluster.py": (("heard_at", _FIELD), ('"heard"', _FIELD)),
    "src/torchloom/weaver/api/queue.py": (('"heard"', _FIELD),),
    "docs/concepts/promises.md": tuple(
        (name, _TEST)
        for name in (
            "killed_between_prepare_and_commit_split_nobody",
            "ends_the_replica_group_that_uses_it_and_nobody_else",
            "a_damaged_checkpoint_is_told_and",
            "a_job_goes_on_after_everything",
        )
    ),
    "docs/internals/weaver.md": (("`heard`", _FIELD),),
    "docs/reference/websocket.md": (("heard_at", _FIELD),),
    "dashboard/src/cluster/big.ts": (("heard_at", _FIELD),),
    "dashboard/src/cluster/node-panel.tsx": (("heard_at", _FIELD),),
}

_MOVED = re.compile(r"^\| `[\w.]+` \|", re.MULTILINE)  # the name of a module as it was
_NAMES = re.compile("|".join(NAMES))
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
    if path.name == "moved.md":
        text = _MOVED.sub("", text)
    return _NAMES.sub("", text)


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


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_still_there_and_is_no_prose(name: str) -> None:
    pattern = re.compile(name)

    assert any(pattern.search(path.read_text()) for room in ROOMS for path in _files(room))
    assert not pattern.search("Its life: a ledger of births, by chance. They beat and regroup.")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("its second life, by chance; a lifetime", ["life", "chance"]),
        ("self._life, EndLife, regroupings", ["life", "life", "regroupings"]),
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
