"""MLflow where the plane's bench stands beside it: `python plane_mlflow.py WHAT FOLDER`.

`log`: each line on stdin says how many batches of 1,000 points to log (the most that MLflow takes
at once); the answer is microseconds a point. `postgres URL`: the same, on that. `served`: the same,
to its own server. `chart POINTS`: a run with ten series of so many points is put into its database;
each line is answered with the milliseconds that its own server's code takes for what its pages draw
of them, without a network between.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

NAMES = ("loss", "accuracy", "lr", "norm", "tokens")
SERIES = 10
BUCKETS = 1000


def logging(folder: Path, points: str, address: str = "") -> Callable[[int], float]:
    """Log as its documentation advises for many numbers."""
    client, run = _run(folder, address)
    from mlflow.entities import Metric  # type: ignore[import-not-found]

    step = 0

    def sample(batches: int) -> float:
        nonlocal step
        told = []
        for _ in range(batches):
            steps = range(step, step + 1000 // len(NAMES))
            step = steps.stop
            told.append(
                [Metric(n, 1 / (s + 1), 1_700_000_000_000 + s, s) for s in steps for n in NAMES]
            )
        began = time.perf_counter()
        for metrics in told:
            client.log_batch(run, metrics=metrics)
        return (time.perf_counter() - began) * 1e6 / (1000 * batches)

    return sample


def on_postgres(folder: Path, url: str) -> Callable[[int], float]:
    """Log the same into a database of its own there."""
    return logging(folder, "", f"postgresql+psycopg://{url.partition('://')[2]}")


def served(folder: Path, points: str) -> Callable[[int], float]:
    """Log the same to its own server, in a process that ends with this one."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    _run(folder)  # which makes the database
    if not os.fork():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder}/mlflow.db"
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(folder / "artifacts")
        import uvicorn  # type: ignore[import-not-found]
        from mlflow.server.fastapi_app import app  # type: ignore[import-not-found]

        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
        os._exit(0)
    _await(port)
    return logging(folder, points, f"http://127.0.0.1:{port}")


def chart(folder: Path, points: str) -> Callable[[int], float]:
    """Ask for ten curves as the page of a run does."""
    _, run = _run(folder)
    _fill(folder / "mlflow.db", run, int(points))
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder}/mlflow.db"
    from mlflow.server import app  # type: ignore[import-not-found]

    asked = app.test_client()
    path = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"

    def sample(_: int) -> float:
        began = time.perf_counter()
        for number in range(SERIES):
            words = f"run_ids={run}&metric_key=m{number}&max_results={BUCKETS}"
            answer = asked.get(f"{path}?{words}")
            assert answer.status_code == 200, answer.data
            assert len(answer.get_json()["metrics"]) >= min(BUCKETS, int(points)) / 2
        return (time.perf_counter() - began) * 1e3

    return sample


def _run(folder: Path, address: str = ""):  # type: ignore[no-untyped-def]
    from mlflow import MlflowClient  # type: ignore[import-not-found]

    client = MlflowClient(tracking_uri=address or f"sqlite:///{folder}/mlflow.db")
    name = f"bench {time.time()}"
    return client, client.create_run(client.create_experiment(name)).info.run_id


def _await(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.1)
    raise SystemExit("mlflow's server does not come up")


def _fill(path: Path, run: str, points: int) -> None:
    """Put in what logging would: through MLflow itself it takes hours."""
    numbers = (
        f"WITH RECURSIVE n(s) AS (SELECT 0 UNION ALL SELECT s + 1 FROM n WHERE s < {points - 1})"
    )
    base = sqlite3.connect(path)
    base.execute("PRAGMA synchronous=OFF")
    for number in range(SERIES):
        base.execute(
            f"{numbers} INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan)"
            f" SELECT 'm{number}', abs(random() % 1000000) / 1e6, 1700000000000 + s, '{run}', s, 0"
            " FROM n"
        )
        base.execute(
            "INSERT INTO latest_metrics (key, value, timestamp, run_uuid, step, is_nan)"
            f" VALUES ('m{number}', 0.5, 1700000000000, '{run}', {points - 1}, 0)"
        )
        base.commit()
    base.close()


def main(what: str, folder: str, points: str = "") -> None:
    """Serve until stdin ends, and leave without long good-byes."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    kinds = {"log": logging, "postgres": on_postgres, "served": served, "chart": chart}
    sample = kinds[what](Path(folder), points)
    print("ready", file=said, flush=True)
    for line in sys.stdin:
        print(sample(int(line)), file=said, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
