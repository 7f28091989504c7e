"""What an agent of a job could not bring away is brought by the next of its job or its host."""

from pathlib import Path

import pytest

from torchloom.bus.spool.spool import Spool
from torchloom.bus.subjects import agent_of_job
from torchloom.launch.node_agent import main
from torchloom.messages.plane import VERSION, Batch, Head

FIRST, SECOND = agent_of_job("n2", "job-1"), agent_of_job("n2", "job-2")
AGAIN = agent_of_job("n2.site", "job-1")  # another name of the same host
ONE = Head(VERSION, "job-1", 0, 1, "aaaa")


def left(folder: Path, host: str = "n2") -> Spool:
    """Return the spool of an agent that has taken a record."""
    main.sign(folder, host)
    spool = Spool(folder, folder.name)
    spool.open(ONE, 4711, 99)
    spool.append(ONE, b"loss")
    return spool


@pytest.mark.parametrize("name", ["n2", AGAIN])
def test_records_of_an_agent_that_is_gone_are_sent_by_the_next(tmp_path: Path, name: str) -> None:
    left(tmp_path / FIRST).close()

    main.adopt(tmp_path / name, "n2")

    spool = Spool(tmp_path / name, name)
    assert list(spool.batches(9)) == [Batch(ONE, name, 1, (b"loss",))]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    spool.close()


def test_an_agent_of_another_job_leaves_them_to_those_who_may_send_them(tmp_path: Path) -> None:
    left(tmp_path / FIRST).close()

    main.adopt(tmp_path / SECOND, "n2")

    assert [path.name for path in (tmp_path / SECOND).iterdir()] == []
    assert (tmp_path / FIRST).is_dir()


def test_spools_that_somebody_has_and_those_of_others_are_left_alone(tmp_path: Path) -> None:
    spools = [left(tmp_path / FIRST), left(tmp_path / "n3-job-1", "n3")]
    spools[1].close()
    Spool(tmp_path / "n1", "n1").close()  # a plane's own, which nobody signs

    main.adopt(tmp_path / AGAIN, "n2")

    assert [path.name for path in (tmp_path / AGAIN).iterdir()] == []
    assert {path.name for path in tmp_path.iterdir()} == {"n1", FIRST, AGAIN, "n3-job-1"}
    assert spools[0].pending == 1
    spools[0].close()
