import witness  # noqa: F401, I001
import atexit
import weakref

import torch  # noqa: F401
import sys


class Last:
    def __del__(self):
        print("deleted", self.name, sys is not None)


atexit.register(print, "first registered, last run")
atexit.register(print, "last registered, first run")
kept = Last()
kept.name = "kept"
circle = Last()
circle.name = "circle"
circle.self = circle
weakref.finalize(kept, print, "finalized")
print("end of the program")
