import witness  # noqa: F401, I001
import atexit
import os
import signal
import time

atexit.register(print, "exit functions run")
print("before")


def work():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)


work()
