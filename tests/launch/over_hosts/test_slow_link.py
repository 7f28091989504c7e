"""Logs that are sent to the launching host: a link that stands still costs memory of nobody."""

import os
import signal
from pathlib import Path

from ...harness.home import until
from ...harness.host_launches import LIMIT, Launches
from .ways import SSH

MIB = 1 << 20
PIECES = 48
# It prints far more than may be on its way, and writes down elsewhere how far it came.
PRINT = f"""
if told["RANK"] == "2":
    while not os.path.exists("go"): pass
    for piece in range({PIECES}):
        os.write(1, bytes([65 + piece % 26]) * {MIB - 1} + b"\\n")
        open(os.environ["REPORTS"] + "/../came", "a").write(".")
"""


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has, as the kernel counts them."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_rank_waits_while_its_launch_process_does_not_read(launches: Launches) -> None:
    launches.cluster.private(launches.home, ["n2"])
    came = launches.folder / "came"
    launch = SSH.start(launches, "--redirects", "3", launches.script(PRINT))
    launches.until_up(4)
    agent = launches.tree("n2")["agent"]
    before = resident(agent)

    reader = launches.launch_process()
    os.kill(reader, signal.SIGSTOP)
    Path("go").touch()
    seen: list[int] = []

    def stands_still() -> bool:
        seen.append(came.stat().st_size if came.exists() else 0)
        return len(seen) > 60 and seen[-60] == seen[-1] > 0

    until(stands_still)
    grown = resident(agent) - before
    os.kill(reader, signal.SIGCONT)

    assert launch.wait(LIMIT) == 0
    assert seen[-1] < PIECES // 2
    assert grown < 24 * MIB
    pieces = launches.log(1, 0).splitlines()
    assert [(piece[0], len(piece)) for piece in pieces] == [
        (chr(65 + piece % 26), MIB - 1) for piece in range(PIECES)
    ]
