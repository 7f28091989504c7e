"""Leaving a group never hangs and never aborts, in whatever order things die."""

from typing import Any

import pytest

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]

# Modules outlive the group and die after it: the order in which gloo otherwise dead-locks.
CYCLES = """
import faulthandler, gc, threading
from torch.nn.parallel import DistributedDataParallel
faulthandler.dump_traceback_later(50, exit=True)
kept, sums = [], []
for cycle in range(20):
    rank = dist.setup_torch(timeout=60)
    net = torch.nn.Linear(10, 10)
    model = {make}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    kept.append((model, optimizer))
    sums.append(dist.all_reduce(1))
    dist.cleanup()
    dist.cleanup()
    del model, optimizer
    if cycle % 2:
        kept.clear()
        gc.collect()
names = [thread.name for thread in threading.enumerate()]
tell([sums, names])
"""


@pytest.mark.parametrize(
    "make",
    [
        "dist.wrap_model(net, use_fsdp=False)",
        "DistributedDataParallel(net)",
        "dist.wrap_model(net, dtype='float32')",
    ],
    ids=["ours", "the user's own", "sharded"],
)
def test_twenty_groups_come_and_go(make: str, ranks: Any) -> None:
    told = ranks.group(CYCLES.replace("{make}", make), 2)

    assert told == [[[2] * 20, ["MainThread"]]] * 2


LIFE = """
dist.setup_torch(timeout=60)
model = dist.wrap_model(torch.nn.Linear(10, 10), use_fsdp=False)
model(torch.randn(4, 10)).sum().backward()
kept = model  # dies with the interpreter
tell("lived")
{end}
"""


@pytest.mark.parametrize("end", ["dist.cleanup()", "pass"], ids=["cleaned up", "forgotten"])
def test_a_rank_that_ends_like_any_program_ends_with_code_0(end: str, ranks: Any) -> None:
    told = [ranks.group(LIFE.replace("{end}", end), 2) for _ in range(5)]

    assert told == [["lived", "lived"]] * 5


def test_what_a_module_wraps_is_whole_after_its_group_is_gone(ranks: Any) -> None:
    script = """
dist.setup_torch(seed=1)
net = torch.nn.Linear(2, 1)
model = dist.wrap_model(net, use_fsdp=False)
model(torch.ones(1, 2)).sum().backward()
dist.cleanup()
net.zero_grad()
model.module(torch.ones(1, 2)).sum().backward()
tell([sorted(model.state_dict()), net.weight.grad.tolist()])
"""

    told = ranks.group(script, 2)

    assert told == [[["module.bias", "module.weight"], [[1.0, 1.0]]]] * 2
