"""Between two hosts of four ranks, all-reduce in two levels sends less; the kernel counts it."""

import json
import sys
from pathlib import Path

import pytest

from ...harness.cluster import Cluster
from ...harness.home import until

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
PLACES = {"in turn": [0, 1] * 4, "consecutive": [0] * 4 + [1] * 4}
LEAST = {"in turn": 4.0, "consecutive": 1.5}  # of a ring of 8, 7 and 2 links join the hosts
NUMBERS, TIMES = 1_000_003, 5
SENT = "/sys/class/net/eth0/statistics/tx_bytes"
SCRIPT = """
import json, os, pathlib, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchloom.worker.dist.hierarchy import ReducePlan, choose

out, hosts, numbers, times = pathlib.Path(sys.argv[1]), *json.loads(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
each = [torch.randn(numbers, generator=torch.Generator().manual_seed(one)) for one in range(world)]
found = {}
for way in ("flat", "hierarchical"):
    plan = ReducePlan(way, tuple(hosts))
    (out / f"ready-{way}-{rank}").touch()
    while not (out / f"go-{way}").exists():
        time.sleep(0.01)
    for _ in range(times):
        mine = each[rank].clone()
        plan.sum(mine)
    everywhere = [torch.empty_like(mine[:1000]) for _ in range(world)]
    (out / f"done-{way}-{rank}").touch()
    while not (out / f"counted-{way}").exists():
        time.sleep(0.01)
    dist.all_gather(everywhere, mine[-1000:].clone())
    gap = float((mine.double() - sum(one.double() for one in each)).abs().max())
    found[way] = [gap, all(torch.equal(everywhere[0], one) for one in everywhere)]
plan, seconds = choose(hosts, torch.device("cpu"))
found["chosen"], found["seconds"] = plan.way, seconds
(out / f"found-{rank}").write_text(json.dumps(found))
dist.barrier()
"""


@pytest.mark.parametrize(
    "places", ["in turn", pytest.param("consecutive", marks=pytest.mark.soak)]
)
def test_a_host_sends_less_and_all_ranks_get_one_sum(
    cluster: Cluster, tmp_path: Path, places: str
) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    told = json.dumps([PLACES[places], NUMBERS, TIMES])
    common = {"WORLD_SIZE": "8", "MASTER_ADDR": "10.77.0.11", "MASTER_PORT": "29511"}
    common |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    ranks = [
        cluster.popen(
            f"n{host + 1}",
            [sys.executable, script, tmp_path, told],
            env={**common, "RANK": str(rank)},
        )
        for rank, host in enumerate(PLACES[places])
    ]

    def all_have(word: str) -> bool:
        assert all(rank.poll() in (None, 0) for rank in ranks)
        return all((tmp_path / f"{word}-{rank}").exists() for rank in range(8))

    sent = {}
    for way in ("flat", "hierarchical"):
        until(lambda way=way: all_have(f"ready-{way}"), 60)
        before = int(cluster.run("n1", ["cat", SENT]).stdout)
        (tmp_path / f"go-{way}").touch()
        until(lambda way=way: all_have(f"done-{way}"), 60)
        after = int(cluster.run("n1", ["cat", SENT]).stdout)
        (tmp_path / f"counted-{way}").touch()
        sent[way] = (after - before) / TIMES / (4 * NUMBERS)
    until(lambda: all_have("found"), 60)

    assert [rank.wait(60) for rank in ranks] == [0] * 8
    found = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(8)]
    assert sent["hierarchical"] < 1.1
    assert sent["flat"] / sent["hierarchical"] >= LEAST[places], sent
    for one in found:
        assert one["hierarchical"][1] and one["flat"][1]
        assert one["hierarchical"][0] < 1e-5
    assert {one["chosen"] for one in found} == {min(found[0]["seconds"], key=found[0]["seconds"].get)}
