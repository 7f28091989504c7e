"""The process that forks ranks, with all imported that a training imports in its first steps."""

import gc
import runpy
from pathlib import Path


def import_all() -> None:
    import numpy  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.utils.data  # noqa: F401

    import torchloom.worker.threadlet.threadlet
    import torchloom.worker.train.loop  # noqa: F401

    gc.collect()
    gc.freeze()  # a collection in a fork need not copy what all forks share


if __name__ == "__main__":
    import_all()
    runpy.run_path(str(Path(__file__).parents[2] / "harness/forked_ranks.py"), run_name="__main__")
