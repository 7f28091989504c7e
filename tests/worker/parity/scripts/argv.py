import witness  # noqa: F401, I001
import sys

print(sys.argv, sys.orig_argv, sys.executable, sys.prefix, sys.base_prefix)
