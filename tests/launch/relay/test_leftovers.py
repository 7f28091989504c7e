"""What an agent of a job could not bring away is brought by the next of its host."""

from pathlib import Path

from torchloom.bus.messages import VERSION, Batch, Head
from torchloom.bus.spool import Spool
from torchloom.launch.relay import leftovers

ONE = Head(VERSION, "job-1", 0, 1, "aaaa")


def left(folder: Path, host: str = "n2") -> Spool:
    """Return the spool of an agent that has taken a record."""
    leftovers.sign(folder, host)
    spool = Spool(folder, folder.name)
    spool.open(ONE, 4711, 99)
    spool.append(ONE, b"loss")
    return spool


def test_records_of_an_agent_that_is_gone_are_sent_by_the_next(tmp_path: Path) -> None:
    left(tmp_path / "n2-job-1").close()

    leftovers.adopt(tmp_path / "n2-job-2", "n2")

    spool = Spool(tmp_path / "n2-job-2", "n2-job-2")
    assert list(spool.batches(9)) == [Batch(ONE, "n2-job-2", 1, (b"loss",))]
    assert [path.name for path in tmp_path.iterdir()] == ["n2-job-2"]
    spool.close()


def test_spools_that_somebody_has_and_those_of_others_are_left_alone(tmp_path: Path) -> None:
    spools = [left(tmp_path / "n2-job-1"), left(tmp_path / "n3-job-1", "n3")]
    spools[1].close()
    Spool(tmp_path / "n1", "n1").close()  # a plane's own, which nobody signs

    leftovers.adopt(tmp_path / "n2-job-2", "n2")

    assert [path.name for path in (tmp_path / "n2-job-2").iterdir()] == []
    assert {path.name for path in tmp_path.iterdir()} == {"n1", "n2-job-1", "n2-job-2", "n3-job-1"}
    assert spools[0].pending == 1
    spools[0].close()
