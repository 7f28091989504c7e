"""Plain torch: the process that forks ranks which have no launcher, no threadlet, no plane."""

import importlib
import runpy
import sys
from pathlib import Path

MODULES = ("torch.distributed", "torch._dynamo", "torch.nn.parallel", "torch.amp")

if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    assert "torchloom" not in sys.modules
    runpy.run_path(str(Path(__file__).parents[1] / "harness/forked_ranks.py"), run_name="__main__")
