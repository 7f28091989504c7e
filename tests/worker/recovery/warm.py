"""The process that forks ranks, with all in memory that they import to meet."""

import importlib
import runpy
from pathlib import Path

MODULES = ("torch.distributed", "torch._dynamo", "torch.nn.parallel", "numpy", "xxhash")
OURS = ("leave", "pages", "recovery", "standin", "transfer.moves")

if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    for name in OURS:
        importlib.import_module(f"torchloom.worker.recovery.{name}")
    runpy.run_path(str(Path(__file__).parents[2] / "harness/forked_ranks.py"), run_name="__main__")
