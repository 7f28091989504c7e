import sys

sys.path.append("")
import witness  # noqa: F401

print(sys.argv, sys.path[0], __file__, __name__, __package__)
