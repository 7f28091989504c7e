import witness  # noqa: F401, I001
import faulthandler
import sys


def deep():
    faulthandler.dump_traceback(file=sys.stderr)


print(faulthandler.is_enabled())
deep()
