"""The process that forks ranks, with all in memory that a training with checkpoints imports."""

import importlib
import runpy
from pathlib import Path

MODULES = ("torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.utils.data", "numpy")
OURS = ("threadlet.attach", "run.run", "run.resumable", "run.divided", "saving", "dist.strategies")

if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    for name in OURS:
        importlib.import_module(f"torchloom.worker.{name}")
    runpy.run_path(str(Path(__file__).parents[2] / "harness/forked_ranks.py"), run_name="__main__")
