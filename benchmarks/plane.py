"""Jobs and their numbers: how fast they are taken in, stored, drawn and told.

One file a part: `plane_submit` and `plane_http` (jobs), `plane_ingest` (metrics stored),
`plane_chart` (metrics drawn), `plane_stream` (metrics told). Beside MLflow where it has the same.
"""

from benchmarks import plane_chart, plane_http, plane_ingest, plane_stream, plane_submit
from benchmarks.figure import Figure, Lab

SAMPLES = 10


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of jobs and metrics."""
    parts = (plane_ingest, plane_chart, plane_submit, plane_http, plane_stream)
    return [figure for part in parts for figure in part.figures(lab)]
