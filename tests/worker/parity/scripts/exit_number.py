import witness  # noqa: F401, I001
import sys

print("unflushed", end="")
sys.exit(300)
