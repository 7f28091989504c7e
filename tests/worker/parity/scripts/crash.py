import witness  # noqa: F401, I001
import faulthandler


def deep():
    faulthandler._sigsegv()


print("lost with the buffer, unless there is none")
deep()
