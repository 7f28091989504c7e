"""What went wrong first, of all that ranks have left: a kill is a kill, whatever was printed."""

import signal
import time
from pathlib import Path

from torchloom.launch.protocol import RankProcessReport
from torchloom.launch.supervisor.reports import RankErrors

WARNED = "Traceback (most recent call last):\n  in old\nDeprecationWarning: use new\n"
KILL = "exit_signal_9_rank_1"


def rank(
    folder: Path, number: int, code: int, stderr: str = "", error: tuple[str, float] | None = None
) -> RankProcessReport:
    logs = folder / str(number)
    logs.mkdir()
    (logs / "stderr.log").write_text(stderr)
    place = ("trainer", 0, number)
    return RankProcessReport(
        *place, 0, 1, logs=str(number), directory=str(logs), code=code, error=error
    )


def test_a_killed_rank_is_the_first_error_though_it_had_warned_and_its_peers_complain(
    tmp_path: Path,
) -> None:
    reports = RankErrors(str(tmp_path))
    killed = rank(tmp_path, 1, -signal.SIGKILL, WARNED)
    peer = rank(tmp_path, 0, 1, error=('{"message": "connection reset by peer"}', time.time() - 1))

    reports.failed(("trainer", 0, 1), 1, killed, KILL)
    reports.failed(("trainer", 0, 0), 0, peer, "exit_code_1_rank_0")

    told = reports.error_summary(KILL)
    assert reports.first(KILL) is None
    assert (told["rank"], told["message"], told["traceback"]) == (
        *(1, "rank 1 was killed (SIGKILL)"),
        "",
    )
    assert told["last_lines"] == WARNED.rstrip("\n")


def test_an_error_that_came_before_a_kill_stays_the_first(tmp_path: Path) -> None:
    reports = RankErrors(str(tmp_path))
    reports.failed(("trainer", 0, 0), 0, rank(tmp_path, 0, 1, WARNED), "exit_code_1_rank_0")
    reports.failed(("trainer", 0, 1), 1, rank(tmp_path, 1, -signal.SIGKILL), KILL)

    told = reports.error_summary("exit_code_1_rank_0")

    assert (told["rank"], told["traceback"], told["last_lines"]) == (0, WARNED, "")


def test_without_a_traceback_the_last_lines_are_what_is_left(tmp_path: Path) -> None:
    reports = RankErrors(str(tmp_path))
    lines = [f"line {number}" for number in range(20)]
    failed = rank(tmp_path, 0, 3, "\n".join(lines) + "\n")
    reports.failed(("trainer", 0, 0), 0, failed, "exit_code_3_rank_0")

    told = reports.error_summary("exit_code_3_rank_0")

    assert (told["message"], told["traceback"]) == ("exit_code_3_rank_0", "")
    assert told["last_lines"].splitlines() == lines[-8:]
