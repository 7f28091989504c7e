import witness  # noqa: F401, I001
import atexit


class Bad:
    def __del__(self):
        raise ValueError("in a destructor")


atexit.register(lambda: 1 / 0)
bad = Bad()
print("the code is still 0")
