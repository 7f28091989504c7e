import witness  # noqa: F401, I001
import inspect
import sys
import traceback


def shown():
    """What inspect is to find."""
    traceback.print_stack()
    return [(frame.function, frame.lineno, frame.filename) for frame in inspect.stack()]


print(inspect.getsource(shown), inspect.getsourcefile(shown), inspect.getmodule(shown))
print(shown(), sys._getframe().f_back, inspect.currentframe().f_code.co_filename)
