"""What `log` of five numbers costs, in whichever library: `python control_log.py WHICH FOLDER`.

Each line on stdin says how many calls to make; the answer is their median in microseconds. Every
library is set up as its documentation advises for speed: nothing is uploaded, printed or sampled
beside. Times are taken around each call alone.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable

Log = Callable[[int, dict[str, float]], object]


def loom(folder: str) -> Log:
    """Ours, with an agent to tell."""
    import torchloom

    run = torchloom.init(project="bench")
    return lambda step, values: run.log(values)


def wandb(folder: str) -> Log:
    """Weights & Biases, offline."""
    import wandb  # type: ignore[import-not-found]

    settings = wandb.Settings(mode="offline", console="off", silent=True, x_disable_stats=True)
    run = wandb.init(project="bench", dir=folder, settings=settings)
    return lambda step, values: run.log(values, step=step)


def mlflow(folder: str) -> Log:
    """MLflow on SQLite: its default store and its default way to log."""
    return _mlflow(folder, True)


def mlflow_async(folder: str) -> Log:
    """MLflow on SQLite, told not to wait for the store."""
    return _mlflow(folder, False)


def _mlflow(folder: str, waits: bool) -> Log:
    import mlflow  # type: ignore[import-not-found]

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow-{waits}.db")
    mlflow.set_experiment("bench")
    mlflow.start_run()
    return lambda step, values: mlflow.log_metrics(values, step=step, synchronous=waits)


def main(which: str, folder: str) -> None:
    """Serve until stdin ends, and leave without long good-byes."""
    log = {"loom": loom, "wandb": wandb, "mlflow": mlflow, "mlflow-async": mlflow_async}[which](
        folder
    )
    step = 0
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    print("ready", file=said, flush=True)
    for line in sys.stdin:
        took = []
        for _ in range(int(line)):
            step += 1
            values = {"loss": 1 / step, "accuracy": 0.5, "lr": 1e-3, "norm": 2.5, "tokens": 4096.0}
            began = time.perf_counter_ns()
            log(step, values)
            took.append(time.perf_counter_ns() - began)
        print(statistics.median(took) / 1000, file=said, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
