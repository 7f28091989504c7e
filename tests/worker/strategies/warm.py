"""The process that forks ranks, with all in memory that strategies import."""

import importlib
import runpy
from pathlib import Path

MODULES = ("torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.utils.data", "numpy")
OURS = ("dist.strategies", "train.loop", "threadlet.attach", "run.resumable", "saving")
THEIRS = ("transformers.models.llama.modeling_llama",)

if __name__ == "__main__":
    for name in (*MODULES, *(f"torchloom.worker.{name}" for name in OURS), *THEIRS):
        importlib.import_module(name)
    runpy.run_path(str(Path(__file__).parents[2] / "harness/forked_ranks.py"), run_name="__main__")
