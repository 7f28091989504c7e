"""Commit, restart and retention die, or their disk fails, at every single call; nothing is lost."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.checkpoint import Fenced, LocalStorage, draft_of
from torchloom.checkpoint.stream import Disk

from .faults import FORMS, LOCAL_FAULTS, call_sites, site_of
from .scenarios import SCENARIOS, commit
from .sweeper import Sweeper, sweeping
from .witness import put_plain, whole_steps

SITES = call_sites(("local.py", "reader.py", "stream.py"), ("disk", "_disk"), Disk)

pytestmark = pytest.mark.process


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in memory where there is one: a thousand children sync thirty times each."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path("/dev/shm") / f"loom-sweep-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@FORMS
def test_no_crash_at_any_call_loses_a_checkpoint(workplace: Path, is_long: bool) -> None:
    hit: dict[str, set[str]] = {site: set() for site in SITES}
    with sweeping() as sweeper:
        for scenario in (name for name in SCENARIOS if not SCENARIOS[name].only_s3):
            calls = _places(_run(sweeper, workplace, scenario, 0, "none"), "call")

            for fault in LOCAL_FAULTS:
                been: set[str] = set()
                for at, call in enumerate(calls, 1):
                    if fault in ("torn", "short") and not call.endswith(" write"):
                        continue
                    if call in been and fault != "kill" and not is_long:
                        continue
                    been.add(call)
                    told = _run(sweeper, workplace, scenario, at, fault)
                    _check(workplace / "root", scenario, told, f"{scenario}: {fault} at call {at}")
                    for place in _places(told, "fault"):
                        hit[site_of(place, SITES) or place].add(fault)

    print(_table(hit))
    of_writes = set(LOCAL_FAULTS)
    everywhere = of_writes - {"torn", "short"}
    assert hit == {site: of_writes if site.endswith(" write") else everywhere for site in SITES}


def _run(sweeper: Sweeper, place: Path, scenario: str, at: int, fault: str) -> list[str]:
    root, told = place / "root", place / "told"
    shutil.rmtree(root, ignore_errors=True)
    told.write_text("")
    _prepare(root, scenario)
    task = {"scenario": scenario, "root": str(root), "told": str(told), "at": at, "fault": fault}

    status = sweeper.run(task)

    lines = told.read_text().splitlines()
    dies = fault in ("kill", "torn") or fault.startswith("cut")
    assert status == (-9 if dies else 0), f"{scenario}: {fault} at call {at}: {lines[-3:]}"
    return lines


def _prepare(root: Path, scenario: str) -> None:
    before = SCENARIOS[scenario]
    for step in (*before.whole, *before.damaged, *before.drafts):
        put_plain(root, step)
    for step in before.damaged:
        os.truncate(root / f"ckpt_step_{step:05d}" / "worker_0.pt", 7)
    for step in before.drafts:
        (root / f"ckpt_step_{step:05d}").rename(root / f"ckpt_step_{step:05d}.g0-1")
    for name in ("ckpt_step_00100", "ckpt_step_00400.g0-1"):  # of a removal that was not finished
        put_plain(root, 50).rename(root / f".gone-{name}")


def _check(root: Path, scenario: str, told: list[str], when: str) -> None:
    """The newest is whole, is found, is not older than reported; and the run can go on."""
    good = whole_steps(root)
    reported = [tuple(map(int, line.split()[1:])) for line in told if line.startswith("committed")]
    kept = max(SCENARIOS[scenario].whole)
    storage = LocalStorage(str(root))

    assert storage.latest() == max(good), when
    assert max(good) >= max([kept, *(step for step, _ in reported)]), when
    assert all(good.get(step) == generation for step, generation in reported), when
    assert set(storage.committed()) <= {*good, *SCENARIOS[scenario].damaged}, when
    if "fence 1" in told:
        with pytest.raises(Fenced):
            commit(storage, 300, 0)
        assert 300 not in good, when

    storage.fence(9)
    storage.clear_drafts(9)
    commit(storage, 900, 9)
    left = [name for name in os.listdir(root) if draft_of(name) or name.startswith(".gone")]
    assert (left, storage.latest(), whole_steps(root)[900]) == ([], 900, 9), when


def _places(told: list[str], kind: str) -> list[str]:
    return [line.split(" ", 1)[1] for line in told if line.startswith(f"{kind} ")]


def _table(hit: dict[str, set[str]]) -> str:
    rows = [f"  {site:32} {' '.join(sorted(faults))}" for site, faults in sorted(hit.items())]
    return "\n".join([f"{len(hit)} call sites of a local store:", *rows])
