import multiprocessing
import sys

import witness  # noqa: F401


class Box:
    def __init__(self, value):
        self.value = value


def work(box):
    parent = multiprocessing.parent_process().name
    print("child", box.value, __name__, type(box).__module__, parent, flush=True)
    return Box(box.value + 1)


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        print(pool.apply(work, (Box(1),)).value)
    process = context.Process(target=work, args=(Box(5),))
    process.start()
    process.join()
    print(process.exitcode, multiprocessing.current_process().name)
    print(multiprocessing.get_start_method())
