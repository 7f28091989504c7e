"""A newcomer's set-up passes on a stand-in group, and what it asks the others is noticed."""

import subprocess
import sys

import pytest

from torchloom.worker.recovery.standin import is_wanted

from ...harness.home import TIMEOUT
from .conftest import Ranks

pytestmark = [pytest.mark.needs("torch"), pytest.mark.process]

# The program says `env://`, as programs do; nobody is there to meet.
SET_UP = """
from torchloom.worker.recovery import standin
standin.install()
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
"""
ASKED = """
value = torch.ones(3)
many = [torch.zeros(3) for _ in range(world)]
ACTS = {
    "all_reduce": lambda: dist.all_reduce(value),
    "broadcast": lambda: dist.broadcast(value, 0),
    "all_gather": lambda: dist.all_gather(many, value),
    "all_gather_object": lambda: dist.all_gather_object([None] * world, {"a": 1}),
    "broadcast_object_list": lambda: dist.broadcast_object_list([1], 0),
    "scatter_object_list": lambda: dist.scatter_object_list([None], None, 0),
    "gather": lambda: dist.gather(value, None, 0),
    "reduce": lambda: dist.reduce(value, 0),
    "send": lambda: dist.send(value, 0),
    "new_group": lambda: dist.new_group([0, 1, 2]),
    "new_subgroups": lambda: dist.new_subgroups(1),
}
"""


def test_only_a_newcomer_has_a_stand_in() -> None:
    assert [is_wanted(env) for env in ({}, {"LOOM_STANDIN": "0"}, {"LOOM_STANDIN": "1"})] == [
        False,
        False,
        True,
    ]


def test_barriers_and_ddp_pass_at_once_with_the_right_rank_and_size(ranks: Ranks) -> None:
    ranks.run(
        SET_UP
        + """
since = time.monotonic()
model = DistributedDataParallel(torch.nn.Linear(4, 4))
dist.barrier()
dist.monitored_barrier()
model(torch.ones(2, 4))
tell(rank=dist.get_rank(), world=dist.get_world_size(), backend=dist.get_backend(),
     used=standin.used(), is_on=standin.is_on(), is_quick=time.monotonic() - since < 30)
"""
    )

    for rank in range(3):
        told = {"rank": rank, "world": 3, "backend": "gloo", "used": "", "is_on": True}
        assert ranks.told(rank) == [{**told, "is_quick": True}]


def test_what_the_set_up_asks_the_others_is_noticed_by_name(ranks: Ranks) -> None:
    ranks.run(
        SET_UP
        + ASKED
        + """
from torchloom.worker.recovery.standin import _here
for name, act in ACTS.items():
    act()
    tell(name=name, used=standin.used())
    _here.used = ""
""",
        world=3,
    )

    told = ranks.told(2)
    assert len(told) == 11
    assert [one["used"] for one in told] == [one["name"] for one in told]


def test_the_first_of_them_is_told(ranks: Ranks) -> None:
    ranks.run(SET_UP + ASKED + 'ACTS["reduce"]()\nACTS["all_reduce"]()\ntell(used=standin.used())')

    assert ranks.told(1) == [{"used": "reduce"}]


def test_our_own_are_not_noticed(ranks: Ranks) -> None:
    ranks.run(
        SET_UP
        + """
with standin.unnoticed():
    dist.all_gather([torch.zeros(1) for _ in range(world)], torch.ones(1))
tell(used=standin.used())
"""
    )

    assert ranks.told(0) == [{"used": ""}]


def test_behind_it_torch_is_as_it_was_and_a_real_group_can_be_made(ranks: Ranks) -> None:
    ranks.run(
        """
before = {name: getattr(dist, name) for name in dir(dist)}
"""
        + SET_UP
        + """
from torch.distributed import all_reduce  # the program keeps it
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model = None
standin.leave()
standin.leave()
c10d = dist.distributed_c10d
same = [name for name in before if getattr(dist, name) is not before[name]]
tell(is_initialized=dist.is_initialized(), other=same, groups=len(c10d._world.pg_map))
join()
value = torch.ones(1)
all_reduce(value)
DistributedDataParallel(torch.nn.Linear(4, 4))(torch.ones(2, 4)).sum().backward()
tell(sum=value.item(), used=standin.used(), is_on=standin.is_on(), backend=dist.get_backend())
dist.barrier()
"""
    )

    for rank in range(3):
        assert ranks.told(rank) == [
            {"is_initialized": False, "other": [], "groups": 0},
            {"sum": 3.0, "used": "", "is_on": False, "backend": "gloo"},
        ]


def test_torch_is_waited_for_and_not_imported() -> None:
    script = """
import os, sys
os.environ.update(RANK="1", WORLD_SIZE="2")
from torchloom.worker.recovery import leave as leaving, standin
leaving.watch()
standin.install()
assert "torch" not in sys.modules and "msgspec" not in sys.modules, "imported too much"
import torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
print(dist.get_rank(), dist.get_world_size(), leaving.current() is not None)
dist.all_reduce(__import__("torch").ones(1))
print(standin.used())
standin.leave()
print(dist.is_initialized())
"""

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )

    assert (done.returncode, done.stdout) == (0, "1 2 True\nall_reduce\nFalse\n"), done.stderr


def test_a_traceback_behind_it_has_torchs_prefix_once_also_through_a_hook_of_the_program(
    ranks: Ranks,
) -> None:
    ranks.run(
        SET_UP
        + """
torchs = sys.excepthook
sys.excepthook = lambda *error: torchs(*error)
standin.leave()
for generation in range(2):
    group = join(generation)
    dist.barrier()
    (folder / f"done-{generation}-{rank}").touch()
    until(lambda: all((folder / f"done-{generation}-{r}").exists() for r in range(world)))
    group.leave()
raised(lambda: leaving.Group.opened(lambda: 1 / 0))  # one that was never made changes nothing
with open(folder / f"told-{rank}", "w") as sys.stderr:
    sys.excepthook(RuntimeError, RuntimeError("own"), None)
"""
    )

    for rank in range(3):
        assert (ranks.folder / f"told-{rank}").read_text() == f"[rank{rank}]: RuntimeError: own\n"
