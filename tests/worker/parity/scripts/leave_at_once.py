import witness  # noqa: F401, I001
import atexit
import os
import sys

atexit.register(print, "never")
print("never either")
sys.stderr.write("line\n")
os._exit(5)
