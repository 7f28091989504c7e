"""A plane and a run of an older commit continue under this code, replaced in place.

The older package is taken from git; a checkout without its history has nothing to take over.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..adversary.test_upgrade_in_place import PATIENCE, Site, plain_weights, read, trained
from ..control.conftest import living
from ..harness.cluster import Cluster
from ..harness.home import home, processes_of, until
from ..harness.metric_rows import in_file
from ..schedulers.slurm_jobs import SlurmJobs

__all__ = ["home"]
pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.needs("torch")]
ROOT = Path(__file__).resolve().parents[2]
BEFORE = "e48a538"  # the last commit before the package was folded into rooms


def unpack_older(where: Path) -> None:
    """Put the package of the older commit into a folder that Python can import from."""
    words = ["git", "-C", str(ROOT), "archive", BEFORE, "src/torchloom"]
    packed = subprocess.run(words, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this checkout does not have {BEFORE}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(where.parent / "older", filter="data")
    where.mkdir()
    shutil.move(where.parent / "older" / "src" / "torchloom", where / "torchloom")


class OlderSite(Site):
    """A plane that begins with the package of an older commit."""

    def _fill(self, plane: Path) -> None:
        """Leave it to the older plane to make its databases, with the schema it knows."""

    def _copy(self, where: Path) -> None:
        if where != self.site:
            super()._copy(where)
        else:
            unpack_older(where)

    def is_kept(self, pid: int) -> bool:
        """Tell whether a process is a zygote in use, which outlives its plane."""
        return "zygote" in read(f"/proc/{pid}/cmdline")

    def logged(self, job: str) -> set[int]:
        """Return the steps whose loss is stored, read past the plane."""
        stored = in_file(self.folder / "loom" / "plane" / "records.db")
        return {step for owner, name, _, _, step in stored if (owner, name) == (job, "loss")}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OlderSite]:
    made = OlderSite(tmp_path)
    program = made.folder / "work" / "training.py"
    text = program.read_text()
    logged = "        step.log(loss=float(step.number))\n"
    program.write_text(text.replace("    time.sleep(0.02)\n", f"{logged}    time.sleep(0.02)\n"))
    yield made
    words = [sys.executable, "-P", "-m", "torchloom", "down"]
    subprocess.run(words, env=made.env, capture_output=True, check=False)
    for pid in living(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_run_of_the_older_commit_ends_with_the_same_weights(
    is_warm: bool, site: OlderSite
) -> None:
    site.env["LOOM_WARM"] = str(int(is_warm))
    site.loom("up")
    if is_warm:
        site.warm_up()
    job = trained(site)
    first = site.ranks()
    site.loom("checkpoint", job)
    saved = json.loads(site.loom("checkpoint", "ls", "--json", job))[-1]
    weaver = site.weaver()
    os.kill(weaver, signal.SIGSTOP)  # what the ranks log from here on stays in the spool
    held = max(site.book(0))
    site.passes()

    site.replace()
    os.kill(weaver, signal.SIGKILL)
    until(lambda: site.weaver() not in (0, weaver) and site.is_new(site.weaver()), PATIENCE)
    site.passes()
    spooled = set(range(held, max(site.book(0))))
    until(lambda: spooled <= site.logged(job), PATIENCE)

    os.kill(first[0][0], signal.SIGKILL)
    until(lambda: site.ranks()[0] not in ([], first[0]), PATIENCE)
    site.passes()
    assert site.ranks()[1] == first[1]

    plane = {pid for pid in living(site.folder) if not site.is_kept(pid)} - processes_of(job)
    site.loom("down")
    until(lambda: not plane & set(living(site.folder)), PATIENCE)
    site.loom("up")
    site.passes()
    assert site.show(job)["state"] == "RUNNING"
    listed = json.loads(site.loom("checkpoint", "ls", "--json", job))[-1]
    assert {name: listed[name] for name in saved} == saved  # this code may say more of it
    site.loom("stop", job)
    until(lambda: not processes_of(job), PATIENCE)

    site.loom("resume", "-d", job)
    until(lambda: site.show(job)["state"] == "RUNNING", PATIENCE)
    site.passes()
    site.loom("stop", job)
    until(lambda: not processes_of(job), PATIENCE)
    books = [site.book(rank) for rank in (0, 1)]
    assert books == [plain_weights(len(book)) for book in books]
    assert site.imported_late() == []


@pytest.mark.needs("slurm")
def test_a_script_that_the_older_commit_queued_runs_under_this_one(
    slurm_cluster: Cluster, home: Path, tmp_path: Path
) -> None:
    jobs = SlurmJobs(slurm_cluster, home, tmp_path)
    train = jobs.script("print('out', os.environ['RANK'])\n")
    unpack_older(tmp_path / "site")
    older = {"PYTHONPATH": str(tmp_path / "site")}
    jobs.slurm("scontrol", "update", "partitionname=test", "state=down")
    try:
        handle = jobs.submit("-n", "4", "--ppn", "2", train, env=older)
        waiting = jobs.shown(handle)["state"]
    finally:
        jobs.slurm("scontrol", "update", "partitionname=test", "state=up")
    shutil.rmtree(tmp_path / "site")
    ended = jobs.ended(handle)

    assert waiting == "QUEUED"
    assert ended["state"] == "COMPLETED", jobs.output(handle)
    assert sorted(one["env"]["RANK"] for one in jobs.told().values()) == ["0", "1", "2", "3"]
