"""Strikes at links: a real interface goes down or slow, and comes back."""

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from torchloom.chaos.faults import actions, host
from torchloom.chaos.faults.actions import NotPossible
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Strike, Target
from torchloom.launch.host.identity import host_name

from .standins import StandIns

pytestmark = [pytest.mark.process, pytest.mark.needs("netns")]
Make = Callable[..., StandIns]
WIRED = (
    "ip link add a0 type veth peer name a1 && ip link set a0 up && ip link set a1 up"
    " && ip link set lo up && echo ready && exec sleep 600"
)


@pytest.fixture
def space() -> Iterator[str]:
    """Give a network namespace with two interfaces that are wired to each other, by a pid in it."""
    words = ["unshare", "--net", "sh", "-c", WIRED]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            yield str(holder.pid)
        finally:
            holder.kill()


def shown(space: str, name: str = "a0") -> tuple[bool, str]:
    """Return whether an interface is up, and what shapes it, with nothing of ours between."""
    words = ["nsenter", f"--net=/proc/{space}/ns/net", "ip", "-j", "link", "show", "dev", name]
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)[0]
    return "UP" in found["flags"], found["qdisc"]


@pytest.mark.parametrize(
    ("kind", "hurt"), [("cut-link", (False, "noqueue")), ("slow-link", (True, "tbf"))]
)
def test_a_link_is_hurt_and_mended(
    kind: str, hurt: tuple[bool, str], space: str, standins: Make
) -> None:
    fault, job = Fault(0.0, kind, link=f"{space}/a0"), standins(ranks=1)
    actions.check([fault], job.victim)
    before = shown(space)
    aim = actions.aim(fault, job.victim)
    assert aim is not None
    assert aim.undo is not None

    told = actions.strike(Strike(0, kind, 0.0), aim)
    during = shown(space)
    again = actions.aim(fault, job.victim)
    for _ in range(2):
        actions.undo(aim.undo)

    target = Target("link", node=host_name(), name=f"{space}/a0")
    assert (told.outcome, told.target) == ("struck", target)
    assert (before, during, shown(space)) == ((True, "noqueue"), hurt, (True, "noqueue"))
    assert again is None  # what is hurt is not hurt twice


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("{}/lo", "{}/lo is a loopback, not a link between hosts; name another"),
        ("{}/b7", "no interface {}/b7; `ip link` and `ip netns` list them"),
        ("nowhere/a0", "no interface nowhere/a0; `ip link` and `ip netns` list them"),
        ("../a0", "no interface ../a0; `ip link` and `ip netns` list them"),
        ("", "cut-link needs a link; give --link IFACE or --link NETNS/IFACE"),
    ],
)
def test_what_is_no_link_between_hosts_is_refused(
    link: str, why: str, space: str, standins: Make
) -> None:
    fault = Fault(0.0, "cut-link", link=link.format(space))

    with pytest.raises(NotPossible) as refused:
        actions.check([fault], standins(ranks=1).victim)

    assert refused.value.problems == (why.format(space),)


def test_a_link_that_somebody_shapes_is_left_alone(space: str, standins: Make) -> None:
    enter = ["nsenter", f"--net=/proc/{space}/ns/net"]
    shape = ["tc", "qdisc", "add", "dev", "a0", "root", "tbf", *host.RATE]
    subprocess.run([*enter, *shape], check=True)

    with pytest.raises(NotPossible, match=r"/a0 is already shaped \(tbf\)"):
        actions.check([Fault(0.0, "slow-link", link=f"{space}/a0")], standins(ranks=1).victim)


def test_a_link_that_went_with_its_host_needs_no_mending(standins: Make) -> None:
    for do in (host.UP, host.FAST):
        actions.undo({"do": do, "link": "999999999/a0"})
