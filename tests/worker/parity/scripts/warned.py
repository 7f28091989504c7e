import witness  # noqa: F401, I001
import sys
import warnings


def warn(level):
    warnings.warn(f"at level {level}", stacklevel=level)


for level in (1, 2, 3, 4):
    warn(level)
warnings.warn("shown in a main program", DeprecationWarning)  # noqa: B028
warnings.warn("of the future", FutureWarning)  # noqa: B028
print(sys.warnoptions)
