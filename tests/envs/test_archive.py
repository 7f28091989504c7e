"""Pack a real venv with a package and a script, unpack it elsewhere, run it there."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from torchloom.envs.archive import NotAnEnvironment, PackedEnv, find_prefix, own_prefix, pack
from torchloom.envs.relocate import main as relocate
from torchloom.errors import Failure, UserError

pytestmark = pytest.mark.process
TOOL = "import greet, sys; print(greet.__file__, sys.prefix, *sys.argv[1:])\n"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A venv with a package, its entry point, one beside it and a file that names the folder."""
    folder = tmp_path / "made"
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "greet.py").write_text("")
    (folder / "src").mkdir()
    (folder / "src/beside.py").write_text("")
    (site / "beside.pth").write_text(f"{folder}/src\n")
    (site / "away.pth").write_text("/opt/elsewhere\n")
    (folder / "bin/greet").write_text(f"#!{folder}/bin/python\n{TOOL}")
    (folder / "bin/greet").chmod(0o755)
    (folder / "share").mkdir()
    (folder / "share/kernel.json").write_text(json.dumps({"argv": [f"{folder}/bin/python"]}))
    (folder / "share/inside").symlink_to(folder / "src")
    return folder


def packed(folder: Path, out: Path) -> PackedEnv:
    return pack(find_prefix(folder), out)


def unpack(archive: Path, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder


def printed(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd="/")
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_unpacked_environment_works_where_it_is_and_knows_nothing_of_where_it_was(
    made: Path, tmp_path: Path
) -> None:
    result = packed(made, tmp_path / "env.tar.gz")
    made.rename(tmp_path / "away")

    new = unpack(result.path, tmp_path / "new place")

    site = next(new.glob("lib/python*/site-packages"))
    assert printed(new / "bin/greet", "x y") == f"{site}/greet.py {new} x y"
    assert printed(new / "bin/python", "-c", "import beside; print(beside.__file__)") == str(
        new / "src/beside.py"
    )
    shell = 'cd /; . "$1/bin/activate" && command -v greet && echo "$VIRTUAL_ENV"'
    assert printed("bash", "-c", shell, "sh", new).splitlines() == [f"{new}/bin/greet", str(new)]
    assert str(made) not in (new / "pyvenv.cfg").read_text()
    assert (new / "share/inside").resolve() == new / "src"


def test_relocating_mends_what_cannot_find_its_own_place(made: Path, tmp_path: Path) -> None:
    result = packed(made, tmp_path / "env.tar.gz")
    made.rename(tmp_path / "away")
    new = unpack(result.path, tmp_path / "new place")

    assert printed(new / "bin/loom-relocate") == ""
    assert printed(new / "bin/loom-relocate") == ""  # again is no harm

    assert json.loads((new / "share/kernel.json").read_text()) == {"argv": [f"{new}/bin/python"]}
    grep = ["grep", "-rlI", str(made), str(new)]
    assert subprocess.run(grep, capture_output=True, text=True).stdout == ""


def test_the_same_input_gives_the_same_bytes_and_the_hash_is_theirs(
    made: Path, tmp_path: Path
) -> None:
    first = packed(made, tmp_path / "a.tar.gz")
    second = packed(made, tmp_path / "b.tar.gz")
    plain = packed(made, tmp_path / "c.tar")

    data = first.path.read_bytes()
    assert data == second.path.read_bytes()
    assert data[4:8] == bytes(4)  # gzip's own time
    assert first.sha256 == second.sha256 == hashlib.sha256(data).hexdigest()
    assert first.size == len(data) < plain.size
    assert {path.name for path in tmp_path.iterdir()} == {"made", "a.tar.gz", "b.tar.gz", "c.tar"}


def test_the_owner_and_the_time_of_packing_are_in_no_header(made: Path, tmp_path: Path) -> None:
    os.utime(made / "bin/greet", (1_000_000_000, 1_000_000_000))

    with tarfile.open(packed(made, tmp_path / "a.tar.gz").path) as tar:
        members = tar.getmembers()
        script = tar.getmember("bin/greet")

    assert {(each.uid, each.gid, each.uname) for each in members} == {(0, 0, "")}
    assert (script.mtime, script.mode) == (1_000_000_000, 0o755)
    assert [each.name for each in members[:-2]] == sorted(
        (each.name for each in members[:-2]), key=lambda name: name.split("/")
    )


def test_what_the_hosts_need_besides_is_told(made: Path, tmp_path: Path) -> None:
    notes = packed(made, tmp_path / "a.tar.gz").notes

    assert notes == (
        f"every host needs {(made / 'bin/python').resolve()}",
        "not packed, outside the folder: /opt/elsewhere",
    )


def test_an_archive_inside_the_environment_does_not_pack_itself(made: Path) -> None:
    packed(made, made / "env.tar.gz")
    again = packed(made, made / "env.tar.gz")

    with tarfile.open(again.path) as tar:
        assert [name for name in tar.getnames() if "tar.gz" in name] == []


def test_an_environment_that_was_moved_already_is_mended_by_packing(
    made: Path, tmp_path: Path
) -> None:
    made.rename(tmp_path / "moved")

    result = packed(tmp_path / "moved", tmp_path / "env.tar.gz")
    new = unpack(result.path, tmp_path / "new")

    assert printed(new / "bin/greet").endswith(f" {new}")


def test_one_environment_may_be_packed_unpacked_and_packed_again(
    made: Path, tmp_path: Path
) -> None:
    first = unpack(packed(made, tmp_path / "a.tar.gz").path, tmp_path / "first")
    shutil.rmtree(made)
    subprocess.run([first / "bin/loom-relocate"], check=True)

    second = unpack(packed(first, tmp_path / "b.tar.gz").path, tmp_path / "second")
    shutil.rmtree(first)

    assert printed(second / "bin/greet").endswith(f" {second}")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert len(tar.getnames()) == len(set(tar.getnames()))


def test_strings_in_binaries_keep_their_places(tmp_path: Path) -> None:
    old, new = "/opt/conda/envs/placeholder", "/tmp/e"
    root = tmp_path / "env"
    root.mkdir()
    binary = f"\x7fELF\0{old}/lib:{old}/lib64\0after\0{old}2\0".encode()
    (root / "lib.so").write_bytes(binary)
    (root / "x.sh").write_text(f"{old}/bin {old}2/bin")
    manifest = {"prefix": old, "text": ["x.sh"], "binary": ["lib.so"]}
    (root / ".loom-env.json").write_text(json.dumps(manifest))

    assert relocate([str(root), new]) == ""

    after = (root / "lib.so").read_bytes()
    assert len(after) == len(binary)
    assert after.index(b"after") == binary.index(b"after")
    assert after.split(b"\0")[1] == b"/tmp/e/lib:/tmp/e/lib64"
    assert f"{old}2".encode() in after
    assert (root / "x.sh").read_text() == f"{new}/bin {old}2/bin"
    assert "characters at most" in relocate([str(root), "/a" * 40])


def test_a_conda_environment_is_known_by_its_records(tmp_path: Path) -> None:
    root = tmp_path / "conda"
    (root / "conda-meta").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin/python").write_bytes(f"\x7fELF\0{root}/lib\0".encode())

    result = packed(root, tmp_path / "conda.tar.gz")

    with tarfile.open(result.path) as tar:
        file = tar.extractfile(".loom-env.json")
        assert isinstance(file, io.BufferedReader)
        manifest = json.load(file)
    assert (manifest["kind"], manifest["binary"], result.notes) == ("conda", ["bin/python"], ())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "pyvenv.cfg").unlink(), "neither pyvenv.cfg nor conda-meta"),
        (lambda folder: (folder / "bin/python").unlink(), "bin/python is missing"),
    ],
)
def test_what_is_no_environment_is_refused(change: object, why: str, made: Path) -> None:
    change(made)  # type: ignore[operator]

    with pytest.raises(NotAnEnvironment, match=why):
        find_prefix(made)


def test_a_place_that_cannot_be_written_is_a_failure_without_debris(
    made: Path, tmp_path: Path
) -> None:
    with pytest.raises(Failure, match="No such file or directory"):
        packed(made, tmp_path / "nowhere/env.tar.gz")
    with pytest.raises(UserError, match=r"must end in \.tar\.gz"):
        packed(made, tmp_path / "env.zip")


def test_the_active_environment_is_the_shells_else_our_own() -> None:
    assert own_prefix({"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c"}) == Path("/v")
    assert own_prefix({"CONDA_PREFIX": "/c"}) == Path("/c")
    if sys.prefix != sys.base_prefix:
        assert own_prefix({}) == Path(sys.prefix)
