import witness  # noqa: F401, I001
import os

for name in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        kind = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
    except FileNotFoundError:
        continue
    print(name, kind, os.get_inheritable(int(name)))
