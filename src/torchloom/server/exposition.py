"""The text that Prometheus reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchloom.server.counts import Counts

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with its labels; `suffix` is of a histogram's parts."""

    value: float
    labels: Labels
    suffix: str = ""


def family(name: str, kind: str, words: str, samples: Iterable[Sample]) -> str:
    """Return all samples of one metric."""
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    lines += [
        f"{name}{each.suffix}{_labels(each.labels)} {_number(each.value)}" for each in samples
    ]
    return "\n".join(lines) + "\n"


def gauge(name: str, words: str, value: float) -> str:
    """Return a metric of one number."""
    return family(name, "gauge", words, [Sample(value, {})])


def requests(counts: Counts) -> str:
    """Return what the server counted."""
    totals = (
        Sample(count, {"method": method, "path": path, "status": status})
        for (method, path, status), count in sorted(counts.requests.items())
    )
    parts = (
        sample
        for (method, path), durations in sorted(counts.durations.items())
        for sample in _histogram(
            {"method": method, "path": path}, durations.cumulative(), durations.total
        )
    )
    return family(
        "torchloom_http_requests_total", "counter", "Requests that were answered.", totals
    ) + family("torchloom_http_request_seconds", "histogram", "How long answers took.", parts)


def _histogram(
    labels: Labels, buckets: Iterable[tuple[str, int]], total: float
) -> Iterable[Sample]:
    count = 0
    for bound, count in buckets:
        yield Sample(count, {**labels, "le": bound}, "_bucket")
    yield Sample(total, labels, "_sum")
    yield Sample(count, labels, "_count")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    shown = (f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())
    return "{" + ",".join(shown) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
