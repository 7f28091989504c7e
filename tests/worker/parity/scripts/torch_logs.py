import witness  # noqa: F401, I001
import logging
import os

import torch

print(os.environ.get("TORCH_LOGS"), dict(torch._logging._internal.log_state.log_qname_to_level))
logger = logging.getLogger("torch.distributed" if os.environ.get("TORCH_LOGS") else "torch")
print(logger.getEffectiveLevel(), len(logger.handlers))
