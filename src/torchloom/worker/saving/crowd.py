"""Whether a core is free: threads that compute or copy together wait for the one that has none."""

import os


def is_crowded() -> bool:
    """Tell whether more threads want to run than there are cores; where it is not known, say no."""
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[0])  # this thread, too
    except (OSError, ValueError, IndexError):
        return False
    return running > (os.cpu_count() or running)
