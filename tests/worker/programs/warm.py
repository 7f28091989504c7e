"""The process that forks ranks, with the frameworks in memory that their programs import."""

import importlib
import runpy
from pathlib import Path

MODULES = (
    *("torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.utils.data"),
    *("lightning.pytorch", "pytorch_lightning", "accelerate"),
    *("torchloom.worker.threadlet.threadlet", "torchloom.worker.threadlet.attach"),
)

if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    runpy.run_path(str(Path(__file__).parents[2] / "harness/forked_ranks.py"), run_name="__main__")
