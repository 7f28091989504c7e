import witness  # noqa: F401, I001
import os
import signal
import sys

shown = {}
for number in sorted(signal.valid_signals()):
    if number < 32:
        shown[signal.Signals(number).name] = str(signal.getsignal(number))[:30]
print(shown, signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))
signal.signal(signal.SIGTERM, lambda number, frame: print("handled", number, frame.f_lineno))
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
with open("/proc/self/status") as status:
    print([line for line in status if line.startswith(("SigBlk", "SigIgn", "SigPnd"))])
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGALRM)
