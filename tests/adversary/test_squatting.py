"""Names in folders that all users share, made beforehand by another user (a real one)."""

import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.envs.remote import RECEIVE
from torchloom.launch.host import sockets
from torchloom.launch.records.folder import RunFolder
from torchloom.weaver.store import place

from ..cli.conftest import Loom, loom, state

__all__ = ["loom", "state"]

pytestmark = [pytest.mark.process, pytest.mark.needs("root")]
OTHER = "nobody"
SQUATS = {  # what the other user does with a name, as a shell script: $1 is the name, $2 ours
    "a folder open to all": 'mkdir "$1" && chmod 777 "$1"',
    "a folder closed to others": 'mkdir -m 700 "$1"',
    "a link to a folder of theirs": 'mkdir -m 777 "$1.theirs" && ln -s "$1.theirs" "$1"',
    "a link to a folder of ours": 'ln -s "$2" "$1"',
    "a link to nothing": 'ln -s "$1.theirs" "$1"',
    "a file": ': > "$1" && chmod 666 "$1"',
}
RANK = """
import json, os, sys
page, store = os.environ["LOOM_PAGE"], os.environ["LOOM_STORE"].removeprefix("file://")
folder = os.lstat(os.path.dirname(page))
told = {"page": page, "store": store, "uid": folder.st_uid, "mode": folder.st_mode}
told["page_uid"], told["page_mode"] = os.lstat(page).st_uid, os.lstat(page).st_mode
open(sys.argv[1] + os.environ["RANK"], "w").write(json.dumps(told))
"""
STRANGER = """
import json, os, sys
from torchloom.worker.threadlet import unmanaged as stranger
folder = stranger._folder(sys.argv[1])
found = os.lstat(folder)
print(json.dumps([str(folder), found.st_uid, found.st_mode]))
"""


def as_other(script: str, *words: str) -> None:
    """Run a shell script as the other user."""
    uid = pwd.getpwnam(OTHER).pw_uid
    subprocess.run(["sh", "-c", script, "sh", *words], user=uid, group=uid, check=True, cwd="/")


@pytest.fixture
def ours() -> Iterator[Path]:
    """A folder of this user that others can see but not write to."""
    folder = Path(tempfile.mkdtemp(prefix="loom-ours-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may write to, as /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="loom-tmp-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def squat(ours: Path) -> Iterator[Callable[[Path, str], None]]:
    """Have the other user take a name; afterwards all that has it is removed."""
    taken: list[Path] = []

    def take(name: Path, how: str) -> None:
        taken.append(name)
        as_other(SQUATS[how], str(name), str(ours))

    yield take
    for name in taken:
        for path in (name, Path(f"{name}.theirs")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def seen(path: Path) -> tuple[int, int, list[str]]:
    """Return whose a name is, what it is, and what is in it or where it leads."""
    found = path.lstat()
    inside = sorted(os.listdir(path)) if path.is_dir() else []
    return found.st_uid, found.st_mode, inside


@pytest.mark.parametrize("how", SQUATS)
def test_ranks_get_another_folder_in_memory_when_its_name_is_taken(
    loom: Loom, squat: Callable[[Path, str], None], tmp_path: Path, ours: Path, how: str
) -> None:
    job = f"squat-{uuid.uuid4().hex[:8]}"
    name = Path(f"/dev/shm/loom-{job}-{os.getuid()}")
    squat(name, how)
    before = seen(name)
    Path("rank.py").write_text(RANK)

    done = loom("run", "-n", "2", "-cfg", f"id={job}", "rank.py", f"{tmp_path}/rank-")

    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1)]
    for one in told:
        assert Path(one["page"]).parent != name
        assert Path(one["store"]).parent == Path(one["page"]).parent
        assert (one["uid"], stat.S_IMODE(one["mode"])) == (os.getuid(), 0o700)
        assert stat.S_ISDIR(one["mode"])
        assert (one["page_uid"], stat.S_IMODE(one["page_mode"])) == (os.getuid(), 0o600)
    assert told[0]["store"] == told[1]["store"]
    assert seen(name) == before  # nothing was written, nothing removed
    assert os.listdir(ours) == []
    assert list(Path("/dev/shm").glob(f"loom-{job}-{os.getuid()}.*[0-9a-f]")) == []


@pytest.mark.parametrize("how", SQUATS)
def test_processes_that_were_not_launched_agree_on_a_folder_of_their_own(
    state: Path, squat: Callable[[Path, str], None], how: str
) -> None:
    job = uuid.uuid4().hex
    name = Path(f"/dev/shm/loom_{job}-{os.getuid()}")
    squat(name, how)
    before = seen(name)

    words = [sys.executable, "-c", STRANGER, job]
    ranks = [subprocess.run(words, capture_output=True, check=True) for _ in range(2)]

    (folder, uid, mode), again = (json.loads(rank.stdout) for rank in ranks)
    assert again[0] == folder != str(name)
    assert (uid, stat.S_IMODE(mode), stat.S_ISDIR(mode)) == (os.getuid(), 0o700, True)
    assert seen(name) == before


@pytest.mark.parametrize("how", sorted(set(SQUATS) - {"a link to nothing"}))
def test_sockets_are_refused_where_the_runtime_folder_is_anothers(
    loom: Loom, squat: Callable[[Path, str], None], shared: Path, how: str
) -> None:
    name = shared / "torchloom"
    squat(name, how)
    before = seen(name)
    env = {"XDG_RUNTIME_DIR": str(shared)}

    done = loom("run", "-n", "2", "/bin/true", env=env)

    assert done.returncode != 0
    said = done.stderr.decode()
    assert str(name) in said
    assert "XDG_RUNTIME_DIR" in said
    assert "Traceback" not in said
    assert seen(name) == before


def test_a_record_in_the_runtime_folder_of_another_is_not_believed(
    loom: Loom, squat: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    assert loom("run", "/bin/true").returncode == 0
    (job,) = loom.ids()
    forged = json.loads((loom.home / "runs" / job / "status.json").read_text())
    name = shared / "torchloom"
    squat(name, "a folder open to all")
    as_other('printf %s "$2" > "$1"', f"{name}/{job}.json", json.dumps({**forged, "owner": "eve"}))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))

    assert RunFolder.named(job).record().owner == forged["owner"] != "eve"


def test_a_socket_at_which_another_user_listens_is_not_spoken_to(shared: Path) -> None:
    path = shared / "app.launch"
    listen = (
        "import socket, sys, os; os.umask(0); s = socket.socket(socket.AF_UNIX);"
        " s.bind(sys.argv[1]); s.listen(); print('ready', flush=True);"
        " [s.accept()[0].recv(1) for _ in iter(int, 1)]"  # until it is killed
    )
    uid = pwd.getpwnam(OTHER).pw_uid
    words = ["python3", "-c", listen, str(path)]
    other = subprocess.Popen(words, user=uid, group=uid, stdout=subprocess.PIPE, cwd="/")
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"
    with socket.socket(socket.AF_UNIX) as plain:
        assert plain.connect_ex(str(path)) == 0  # it does answer

    try:
        with pytest.raises(PermissionError, match="another user listens"):
            sockets.connect(path)
    finally:
        other.kill()
        other.communicate()


def test_the_folder_of_the_database_is_not_made_in_one_of_another_user(
    squat: Callable[[Path, str], None], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    name = shared / f"torchloom-{os.getuid()}"
    squat(name, "a folder open to all")
    before = seen(name)

    with pytest.raises(place.FolderUnsafe, match="belongs to user"):
        place.prepare(name / "0123456789ab")

    assert seen(name) == before


def test_an_environment_that_another_user_laid_out_is_not_taken_for_ours(
    squat: Callable[[Path, str], None], shared: Path
) -> None:
    user = shared / "ada"
    squat(user, "a folder open to all")
    as_other('mkdir "$1" && echo 1234 > "$1/.loom-hash"', f"{user}/env")

    words = ["sh", "-c", RECEIVE, "loom", f"{user}/env", "1234", "token"]
    done = subprocess.run(words, input=b"", capture_output=True)

    assert (done.returncode, done.stdout) == (3, b"")
    assert f"{user} is not yours: choose another --dest" in done.stderr.decode()
    assert sorted(os.listdir(user)) == ["env"]
