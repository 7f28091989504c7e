import os
import sys

import witness  # noqa: F401

from . import sibling
from .sibling import NAME

print(sys.argv, sys.orig_argv, sys.path[0] == os.getcwd())
print(__name__, __package__, __spec__.name, __file__, sibling.NAME, NAME)
raise ValueError("from a module")
