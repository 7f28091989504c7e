import witness  # noqa: F401, I001
import sys

print("out")
sys.exit("in words: ä")
