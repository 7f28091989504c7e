import witness  # noqa: F401, I001
import threading
import time

gate = threading.Event()


def late():
    gate.wait()
    time.sleep(0.05)
    print("a thread outlives the program", threading.main_thread().is_alive())


threading.Thread(target=late, name="late").start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(threading.active_count(), threading.main_thread() is threading.current_thread())
print(threading.current_thread().name, sorted(thread.name for thread in threading.enumerate())[1:])
gate.set()
