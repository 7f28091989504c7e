import witness  # noqa: F401, I001
import sys
import threading


def hook(kind, error, trace):
    print("hook", kind.__name__, error, trace.tb_frame.f_code.co_name, file=sys.stderr)
    raise RuntimeError("the hook fails too")


thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
sys.excepthook = hook
raise LookupError("original")
