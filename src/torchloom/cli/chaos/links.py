"""Hit the network between hosts: an interface goes down for a while, or sends very slowly.

A link is named `IFACE` in our own network namespace, or `NETNS/IFACE` in one that `ip netns` lists
or that a process with this pid is in: so the hosts of a machine that has several can be parted.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchloom.cli.chaos.plan import Fault
from torchloom.cli.chaos.record import Target
from torchloom.cli.chaos.targets import Aim, Undo, Victim
from torchloom.errors import Failure
from torchloom.launch.host.identity import host_name

UP, FAST = "link-up", "link-fast"
RATE = ("rate", "1mbit", "burst", "32kb", "latency", "400ms")
_NAMED = Path("/run/netns")
_OWN = ("noqueue", "pfifo_fast", "fq_codel", "fq", "mq")  # that the kernel gives by itself
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 30.0


class LinkNotTouched(Failure):
    """The kernel did not take what was asked of an interface."""

    code = "link_not_touched"

    def __init__(self, words: Sequence[str], said: str) -> None:
        super().__init__(f"`{' '.join(words)}` failed: {said.strip() or 'without a word'}")


def no_link(fault: Fault, victim: Victim) -> str:
    """Return why a link cannot be hit, or nothing."""
    if os.geteuid() != 0:
        return f"{fault.kind} needs root; run it with sudo, or leave the kind out"
    if lacking := [one for one in ("ip", "tc", "nsenter") if not shutil.which(one, path=_PATH)]:
        return f"{fault.kind} needs {lacking[0]}; install iproute2 and util-linux"
    if not fault.link:
        return f"{fault.kind} needs to know which link; say --link IFACE or --link NETNS/IFACE"
    found = _look(fault.link)
    if found is None:
        return f"no interface {fault.link}; `ip link` and `ip netns` list them"
    return _not_ours(fault, found)


def _not_ours(fault: Fault, found: dict[str, Any]) -> str:
    """Return why an interface that is there must not be touched, or nothing."""
    link = fault.link
    if "LOOPBACK" in found["flags"]:
        return f"{link} is a loopback, no link between hosts; name another"
    if "/" not in link and _is_way_out(link):
        return f"{link} is this machine's own way out; name one of a namespace: NETNS/IFACE"
    if fault.kind == "slow-link" and found.get("qdisc") not in _OWN:
        return f"somebody shapes {link} already ({found.get('qdisc')}); take that away first"
    return ""


def aim_link(fault: Fault, victim: Victim) -> Aim | None:
    """Return the interface, if it is up and nobody else slows it down."""
    found = _look(fault.link)
    is_cut = fault.kind == "cut-link"
    if found is None or "UP" not in found["flags"]:
        return None
    if not is_cut and found.get("qdisc") not in _OWN:
        return None
    target = Target("link", node=host_name(), name=fault.link)
    return Aim(target, {"do": UP if is_cut else FAST, "link": fault.link})


def cut(aim: Aim) -> bool:
    """Pull the cable: silence on both sides, nothing is reset."""
    _act(aim.target.name, "ip", "link", "set", "dev", _interface(aim.target.name), "down")
    return True


def slow(aim: Aim) -> bool:
    """Let it send no faster than a modem did."""
    link = aim.target.name
    _act(link, "tc", "qdisc", "add", "dev", _interface(link), "root", "tbf", *RATE)
    return True


def mend(undo: Undo) -> None:
    """Plug the cable in again; an interface that is gone needs none."""
    if _look(undo["link"]) is not None:
        _act(undo["link"], "ip", "link", "set", "dev", _interface(undo["link"]), "up")


def quicken(undo: Undo) -> None:
    """Let it send as it did."""
    found = _look(undo["link"])
    if found is not None and found.get("qdisc") == "tbf":
        _act(undo["link"], "tc", "qdisc", "del", "dev", _interface(undo["link"]), "root")


def _look(link: str) -> dict[str, Any] | None:
    """Return what the kernel says of an interface, or nothing when there is none."""
    done = _run(link, "ip", "-j", "link", "show", "dev", _interface(link))
    found = json.loads(done.stdout) if done is not None and done.returncode == 0 else []
    return found[0] if found else None


def _is_way_out(link: str) -> bool:
    done = _run(link, "ip", "-j", "route", "show", "default")
    routes = json.loads(done.stdout or "[]") if done is not None and done.returncode == 0 else []
    return any(route.get("dev") == _interface(link) for route in routes)


def _act(link: str, *words: str) -> None:
    done = _run(link, *words)
    if done is None or done.returncode:
        raise LinkNotTouched(words, done.stderr if done else f"no namespace of {link}")


def _run(link: str, *words: str) -> "subprocess.CompletedProcess[str] | None":
    """Run a command where the interface is; nothing when that place is gone."""
    space = _namespace(link)
    if space is None:
        return None
    enter = ["nsenter", f"--net={space}", "--"] if space else []
    return subprocess.run(
        [*enter, *words],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
        env={"PATH": _PATH},
    )


def _namespace(link: str) -> str | None:
    """Return the file of a link's namespace; "" is our own, None one that is not there."""
    name, slash, _ = link.rpartition("/")
    if not slash:
        return ""
    place = Path(f"/proc/{name}/ns/net") if name.isdecimal() else _NAMED / name
    is_plain = name not in ("", ".", "..") and "/" not in name
    return str(place) if is_plain and place.exists() else None


def _interface(link: str) -> str:
    return link.rpartition("/")[2]
