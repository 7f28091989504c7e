import witness  # noqa: F401, I001
import os
import tempfile
import time

print(tempfile.gettempdir(), os.path.expanduser("~"), time.tzname, time.localtime(0).tm_hour)
with tempfile.NamedTemporaryFile() as file:
    print(os.path.dirname(file.name))
