import witness  # noqa: F401, I001
import gc
import random
import sys

print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage, sys.getallocatedblocks() > 0)
random.seed(5)
print(
    random.random(),
    exit.__class__.__name__,
    sorted(name for name in dir(__builtins__) if name[0] == "e"),
)
