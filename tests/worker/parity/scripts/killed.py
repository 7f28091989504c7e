import witness  # noqa: F401, I001
import os
import signal

print("lost, since it is in the buffer")
os.kill(os.getpid(), signal.SIGTERM)
