"""Members on hosts that share nothing but a link: they meet at an address, states are sent."""

import json
import sys
from pathlib import Path

import pytest

from ...harness.cluster import Cluster
from ...harness.home import TIMEOUT

pytestmark = [pytest.mark.needs("torch"), pytest.mark.process]
PORT = 29871
SCRIPT = """
import json, os, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from torchloom.messages.membership import Given
from torchloom.worker.recovery import recovery as joining
from torchloom.worker.recovery.transfer import moves as moving
rank, address, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
if rank == 0:
    served = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
store = f"tcp://{address}:{port}"
group = joining.join(store, rank, 2, "gloo", 60, patience=80)
state = {"w": torch.arange(12_000_000.0), "b": torch.tensor(3)} if rank == 0 else None
given = [Given(1, "state", 4, 0), Given(1, "private", 3, 0)]
taken = moving.give_and_take(
    given, rank, ["n1", "n2"], Path("/dev/shm"), 2, lambda: state, lambda step: {"at": step}
)
if rank == 1:
    whole = torch.equal(taken.shared["w"], torch.arange(12_000_000.0))
    facts = {"whole": whole, "b": int(taken.shared["b"]), "private": taken.private}
    left = [name for name in os.listdir("/dev/shm") if name.startswith("moving-")]
    print(json.dumps({**facts, "is_all": taken.taken > 48_000_000, "left": left}))
dist.barrier()
os._exit(0 if sys.stdout.flush() is None else 1)
"""


def test_a_state_is_sent_from_host_to_host(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    words = [sys.executable, script]
    where = [cluster.addresses["n1"], str(PORT)]

    first = cluster.popen("n1", [*words, "0", *where])
    second = cluster.run("n2", [*words, "1", *where], timeout=TIMEOUT)
    _, trouble = first.communicate(timeout=TIMEOUT)

    assert (first.returncode, second.returncode) == (0, 0), trouble + second.stderr
    assert json.loads(second.stdout) == {
        "whole": True,
        "b": 3,
        "private": {"at": 3},
        "is_all": True,
        "left": [],
    }
