"""Whatever dies, is lost, late, doubled or stopped: a run recovers exactly, or ends in time.

A seed that breaks something is replayed by `python -m tests.rules.simulation SEED`.
"""

import os

import pytest

from torchloom.messages.membership import FromMember
from torchloom.rules.membership.election import Cause, StateOrigin, What
from torchloom.rules.membership.events import Event, GenerationChange, MemberReport

from ...harness.home import allowed
from ..simulation.campaign import Found, campaign, first_broken, several
from ..simulation.checks import Broken
from ..simulation.mutants import BUGS, planted
from ..simulation.world import World

SEEDS = 10_000
FEW = 120
OFTEN = 100
PROCESSES = 2

STATES = (
    "training",
    "gathering/live",
    "gathering/restart",
    "moving/live",
    "moving/restart",
    "complete",
    "failed",
)
EVENTS = tuple(
    kind.__name__ for kind in (*Event.__args__, *FromMember.__args__) if kind is not MemberReport
)
BRANCHES = (
    *(("restart", cause) for cause in Cause),
    *(("origin", origin) for origin in StateOrigin),
    *(("move", what) for what in What),
    *(("told", change.__name__) for change in GenerationChange.__args__),
    *(("exact", word) for word in ("True", "False")),
    *(("branch", word) for word in ("fenced", "checkpoint_set_aside")),
    *(
        ("reason", word)
        for word in (
            "collective_error_rank",
            "exit_code_1_rank",
            "exit_signal_9_rank",
            "hang_rank",
            "device_failed",
            "node_lost",
            "refused_rank",
            "store_lost",
        )
    ),
)


def seldom(found: Found, times: int) -> dict[tuple[str, str], int]:
    """Return every pair of state and event, and every branch, that was seen less often."""
    pairs = [(state, event) for state in STATES for event in EVENTS]
    wanted = [*pairs, *((what, str(which)) for what, which in BRANCHES)]
    return {key: found.coverage[key] for key in wanted if found.coverage[key] < times}


def replay(found: Found) -> str:
    lines = (f"python -m tests.rules.simulation {s}  # {why}" for s, why in found.broken.items())
    return "\n".join(lines)


def test_a_few_seeds_keep_every_promise() -> None:
    share = int(os.environ.get("LOOM_TEST_EXAMPLES", "100"))
    found = several(range(1_000_000, 1_000_000 + max(20, FEW * share // 100)))

    assert not found.broken, replay(found)


@pytest.mark.process
def test_ten_thousand_seeds_keep_every_promise_and_see_every_state_and_event() -> None:
    found = campaign(0, SEEDS, PROCESSES)

    print(f"{found.seeds} seeds, {found.events} events, {found.seconds:.0f} s of one core")
    assert not found.broken, replay(found)
    assert seldom(found, OFTEN) == {}
    assert found.events >= SEEDS * 200
    assert found.seconds < allowed(300)


@pytest.mark.process
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug) as laws:
        found = first_broken(laws, most=BUGS[bug])

    assert found is not None, f"{bug} was not found in {BUGS[bug]} seeds"
    print(f"{bug}: {found[1]}")


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = (World(7, is_traced=True).run() for _ in range(2))

    assert first.clock.lines == second.clock.lines
    assert first.coverage == second.coverage


def test_what_breaks_a_promise_names_its_seed() -> None:
    with planted("survivor_killed") as laws:
        seed, _ = first_broken(laws, most=50) or (-1, "")
        with pytest.raises(Broken, match=f"seed {seed}: .* was killed for another's fault"):
            World(seed, laws).run()
