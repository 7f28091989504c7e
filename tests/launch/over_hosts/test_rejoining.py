"""An agent that dies at an awkward moment: what it was told or wanted to tell is not lost."""

import os
import signal

from ...harness.home import until
from ...harness.host_launches import LIMIT, STAY, Launches, state_of

FIRST_FAILS = """
import time
if told["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists(os.environ["REPORTS"] + "/../fail"): time.sleep(0.01)
    sys.exit(1)
print("again", flush=True)
"""


def has_ended(launches: Launches, replica: int) -> bool:
    events = launches.events()
    return any(each["event"] == "exit" and each["replica"] == replica for each in events)


def test_a_store_that_was_asked_of_a_dead_agent_is_asked_of_the_next(launches: Launches) -> None:
    hosts = launches.hostfile(n1=1, n2=1)
    words = ["--hostfile", hosts, "--max-restarts", "1", launches.script(FIRST_FAILS)]
    launch = launches.launch("n1", *words)
    launches.until_up(2)
    first, second = launches.tree("n1"), launches.tree("n2")

    os.kill(second["agent"], signal.SIGSTOP)
    (launches.folder / "fail").touch()
    until(lambda: has_ended(launches, 0))
    for name in ("guard", "agent"):
        os.kill(first[name], signal.SIGSTOP)
    os.kill(second["agent"], signal.SIGCONT)  # the last exit: a store is asked of n1
    until(lambda: has_ended(launches, 1))
    os.kill(first["agent"], signal.SIGKILL)
    os.kill(first["guard"], signal.SIGCONT)

    assert launch.wait(LIMIT) == 0
    assert [len(lives) for lives in launches.lives().values()] == [2, 2]
    assert launches.record()["restarts"] == 1


def test_exits_that_no_agent_saw_are_heard_of_from_the_next(launches: Launches) -> None:
    hosts = launches.hostfile(n1=1, n2=2)
    launch = launches.launch("n1", "--hostfile", hosts, launches.script(STAY))
    launches.until_up(3)
    tree, ranks = launches.tree("n2"), launches.ranks_on("n2")

    os.kill(tree["guard"], signal.SIGSTOP)  # no other agent yet
    os.kill(tree["agent"], signal.SIGKILL)
    until(lambda: state_of(tree["agent"]) in "ZX")
    os.kill(min(ranks), signal.SIGKILL)
    until(lambda: launches.ranks_on("n2") != ranks)
    os.kill(tree["guard"], signal.SIGCONT)

    assert launch.wait(LIMIT) == 137
    assert launches.record()["reason"].startswith("exit_signal_9_rank_")
