import witness  # noqa: F401, I001
import os

import numpy
import threadpoolctl
import torch

print(torch.get_num_threads(), torch.get_num_interop_threads())
shown = [(item["internal_api"], item["num_threads"]) for item in threadpoolctl.threadpool_info()]
print(sorted(shown), os.environ.get("OMP_NUM_THREADS"))
square = numpy.ones((300, 300))
print((square @ square).sum(), torch.ones(400, 400).mm(torch.ones(400, 400)).sum().item())
