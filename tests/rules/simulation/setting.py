"""What a seed stands for: a job, its nodes, how bad the network is, and which faults hit when."""

import random
from dataclasses import dataclass, field

from torchloom.rules.membership.election import Holding, RecoveryLimits

EVENTS = 200  # faults fall due within the first so many
KINDS = {
    "kill": 12,
    "kill_source": 4,
    "kill_first": 3,
    "kill_two": 4,
    "kill_all": 2,
    "stop": 4,
    "raise": 3,
    "raise_like_a_peer": 2,
    "raise_always": 2,
    "quit": 2,
    "cut_link": 4,
    "cut_link_long": 1,
    "lose_host": 4,
    "reboot_host": 3,
    "lose_keeper": 3,
    "partition": 4,
    "kill_agent": 4,
    "kill_weaver": 6,
    "fuse_weaver": 6,
    "zombie_weaver": 6,
    "kill_store": 4,
    "storm": 4,
    "corrupt": 7,
    "echo": 4,
    "kill_with_echoes": 4,
    "kill_all_with_echoes": 2,
    "fail_device": 4,
    "bad_fork": 8,
    "bad_prologue": 4,
    "bad_prologues": 2,
    "slow_prologue": 2,
}
PHASES = ("gathering", "moving", "moving", "moving", "complete", "failed")
RARE = (  # what chance alone would not bring about often enough
    ("stop", "moving"),
    ("stop", "moving"),
    ("stop", "gathering"),
    ("stop", "finishing"),
    ("kill", "finishing"),
    ("kill_two", "finishing"),
    ("kill_store", "moving"),
    ("kill_store", "failed"),
    ("kill_store", "complete"),
    ("storm", "finishing"),
    ("cut_link", "finishing"),
    ("lose_host", "moving"),
    ("corrupt", "gathering"),
    ("bad_fork", "finishing"),
    ("echo", "gathering"),
    ("echo", "moving"),
    ("echo", "moving"),
    ("echo", "finishing"),
    ("echo", "complete"),
    ("echo", "failed"),
    ("echo", "failed"),
    ("kill_with_echoes", "finishing"),
    ("kill_all_with_echoes", "finishing"),
    ("fail_device", "moving"),
    ("fail_device", "failed"),
    ("fail_device", "complete"),
    ("kill_store", "failed"),
    ("echo", "failed"),
    ("bad_fork", ""),
    ("corrupt", ""),
    ("kill_with_echoes", "moving"),
    ("reboot_host", "moving"),
    ("lose_keeper", ""),
    ("lose_keeper", "training"),
    ("lose_keeper", "training"),
    ("bad_prologues", "finishing"),
    ("kill_with_echoes", "finishing"),
    ("kill_source", "moving"),
    ("kill_source", "moving"),
    ("partition", "moving"),
    ("lose_host", "moving"),
    ("kill_source", "moving"),
    ("bad_fork", "training"),
    ("bad_fork", "training"),
    ("kill_store", "moving"),
    ("kill_store", "moving"),
    ("lose_host", "failed"),
    ("lose_host", "failed"),
    ("slow_prologue", "training"),
    ("cut_link_long", "training"),
    ("lose_keeper", "moving"),
    ("raise_always", ""),
)


@dataclass(frozen=True)
class Fault:
    """One fault: after how many events, of which kind, and in which phase if not in any."""

    at: int
    kind: str
    phase: str = ""


@dataclass(frozen=True)
class Setting:
    """All that differs between two runs besides the order of events."""

    seed: int
    nodes: tuple[str, ...]  # of each rank
    room: dict[str, int]
    holding: Holding
    steps: int
    copy_every: int
    save_every: int
    limits: RecoveryLimits
    loss: float
    twice: float
    is_staged: bool  # a transfer that is interrupted leaves what was there
    uses_collectives: bool
    prologue: float
    faults: tuple[Fault, ...] = field(default=())

    @property
    def ranks(self) -> int:
        return len(self.nodes)


def setting_of(seed: int) -> Setting:
    """Return what a seed stands for."""
    rng = random.Random(seed * 2 + 1)
    ranks, hosts = rng.choice((2, 2, 3, 3, 4)), rng.choice((1, 2, 2, 3))
    nodes = tuple(sorted(f"n{rank % hosts}" for rank in range(ranks)))
    room = {f"n{host}": nodes.count(f"n{host}") for host in range(hosts) if f"n{host}" in nodes}
    if rng.random() < 0.5:
        room["spare"] = 2
    limits = RecoveryLimits(is_exact=rng.random() < 0.3)
    is_bad = rng.random() < 0.6
    return Setting(
        seed=seed,
        nodes=nodes,
        room=room,
        holding=rng.choice((Holding.REPLICATED, Holding.REPLICATED, Holding.SHARDED)),
        steps=-(-210 // (3 * ranks)),
        copy_every=rng.choice((0, 2, 3)),
        save_every=rng.choice((0, 4, 7)),
        limits=limits,
        loss=rng.choice((0.05, 0.15)) if is_bad else 0.0,
        twice=rng.choice((0.1, 0.4)) if is_bad else 0.0,
        is_staged=rng.random() < 0.4,
        uses_collectives=rng.random() < 0.07,
        prologue=rng.choice((0.001, 0.05, 0.3)),
        faults=_faults(rng),
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    """Return faults in order; a third of them fall soon after the one before."""
    kinds, weights = list(KINDS), list(KINDS.values())
    at, faults = 0, []
    for _ in range(rng.choice((1, 2, 3, 4, 6, 9))):
        is_close = faults and rng.random() < 0.35
        at = min(EVENTS, at + rng.randint(0, 8)) if is_close else rng.randrange(EVENTS)
        phase = rng.choice(PHASES) if rng.random() < 0.4 else ""
        kind = rng.choices(kinds, weights)[0]
        if rng.random() < 0.4:
            kind, phase = rng.choice(RARE)
        faults.append(Fault(at, kind, phase))
    if rng.random() < 0.12:
        last = rng.randrange(EVENTS // 2, EVENTS)
        doom = Fault(last, "doom", rng.choice(("", "finishing", "moving")))
        faults += [
            Fault(rng.randrange(last), "corrupt"),
            doom,
            *[Fault(last, "echo", "failed")] * 2,
        ]
    return tuple(sorted(faults, key=lambda fault: fault.at))
