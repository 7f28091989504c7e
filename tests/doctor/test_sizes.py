"""How much room torchloom's own files take, compared with what du says."""

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from torchloom.doctor.folders import amount, count, sizes

from .conftest import PlaceMaker


def filled(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_what_is_there_is_told_by_what_it_is(place: PlaceMaker) -> None:
    here = place()
    home = here.home
    filled(home / "plane/state.db", 2**20)
    filled(home / "plane/state.db-wal", 2**20)
    filled(home / "plane/records.db", 5 * 2**20)
    filled(home / "runs/a/logs/0/out", 3 * 2**20)
    filled(home / "runs/b/status.json", 4096)
    filled(home / "runs/.ended.jsonl", 10)
    filled(home / "cache/modules", 4096)

    folder = (
        (home / "cache").lstat().st_blocks * 512 // 2**10
    )  # none in memory, 4 KiB on most disks

    found = {each.name: each.text for each in sizes(here)}

    assert found["databases"] == f"state 2.0 MiB, records 5.0 MiB in {home}/plane"
    assert found["runs"].startswith("2 runs with 3.0 MiB, 3.0 MiB of it logs, in ")
    assert found["caches"].startswith(f"caches {4 + folder} KiB, spool 0 B, the plane's logs 0 B")


def test_databases_elsewhere_are_found(place: PlaceMaker, tmp_path: Path) -> None:
    filled(tmp_path / "local/records.db", 2**20)

    found = {each.name: each.text for each in sizes(replace(place(), databases=tmp_path / "local"))}

    assert found["databases"] == f"records 1.0 MiB in {tmp_path}/local"


def test_a_home_without_anything_is_well(place: PlaceMaker) -> None:
    assert [each.name for each in sizes(place())] == ["caches"]


def test_what_is_counted_is_what_du_counts(tmp_path: Path) -> None:
    for at in range(20):
        filled(tmp_path / "tree" / str(at % 3) / str(at), 1000 * at)
    (tmp_path / "tree/link").symlink_to("/usr")
    told = subprocess.run(["du", "-sk", tmp_path / "tree"], capture_output=True, check=True).stdout

    assert count([tmp_path / "tree"], time.monotonic() + 60).size == int(told.split()[0]) * 1024


def test_when_time_is_up_it_is_said_that_there_is_more(tmp_path: Path) -> None:
    filled(tmp_path / "file", 4096)

    assert str(count([tmp_path], time.monotonic() - 1)) == "more than 0 B"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2048, "2 KiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**60, "1048576.0 TiB"),
    ],
)
def test_bytes_are_told_as_people_say_them(size: int, words: str) -> None:
    assert amount(size) == words
