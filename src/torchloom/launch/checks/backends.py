"""Which collectives the job's own torch offers; asked in a process of its own."""

import json
import sys
from collections.abc import Iterator
from importlib import util
from subprocess import SubprocessError

from torchloom.launch.checks.finding import Finding, Place, note, ok, problem, why

PATIENCE = 120.0  # a first import from a network file system takes long
_LOOK = """
import json, torch
import torch.distributed as dist
there = dist.is_available()
names = ("gloo", "nccl", "xccl", "mpi")
backends = [name for name in names if there and dist.is_backend_available(name)]
counts = {}
for kind in ("cuda", "xpu"):
    module = getattr(torch, kind, None)
    if module is not None and module.is_available():
        counts[kind] = module.device_count()
print(json.dumps({"version": torch.__version__, "backends": backends, "devices": counts}))
"""


def backends(place: Place) -> Iterator[Finding]:
    """Import torch as a rank would, and tell what it can do."""
    if util.find_spec("torch") is None:
        return
    try:
        told = json.loads(place.ask([sys.executable, "-c", _LOOK], PATIENCE))
    except (OSError, SubprocessError, ValueError) as error:
        remedy = f"`{sys.executable} -c 'import torch'` must work; install torch again"
        yield problem("backends", f"torch: {why(error)}", remedy)
        return
    yield from _judge(place, told["backends"], told["devices"])


def _judge(place: Place, names: list[str], counts: dict[str, int]) -> Iterator[Finding]:
    text = ", ".join(names) or "none"
    text += "".join(f"; {count} {kind}" for kind, count in counts.items())
    wanted = place.env.get("TORCH_BACKEND", "").lower()
    if not names:
        remedy = "install a torch built with distributed; the wheels of pytorch.org are"
        yield problem("backends", "this torch has no collectives", remedy)
    elif wanted and wanted not in names:
        remedy = f"unset TORCH_BACKEND, or choose one of {', '.join(names)}"
        yield problem("backends", f"TORCH_BACKEND={wanted}, but torch has {text}", remedy)
    elif not counts and any((place.root / "dev").glob("nvidia[0-9]*")):
        remedy = "install the CUDA build of torch, or a driver that is new enough for it"
        yield note("backends", f"{text}; torch sees none of the devices", remedy)
    else:
        yield ok("backends", text)
