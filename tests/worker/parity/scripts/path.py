import witness  # noqa: F401, I001
import sys
import os

print(sys.path, os.getcwd())
import neighbour  # noqa: E402

print(neighbour.__file__)
