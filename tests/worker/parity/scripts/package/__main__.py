import sys

import witness  # noqa: F401

print(__name__, __package__, __spec__.name, sys.argv)
sys.exit("a package says goodbye")
