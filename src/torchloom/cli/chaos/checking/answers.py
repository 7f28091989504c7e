"""Ask the plane's API about a job as anybody would, and look at the shape of what it says."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from torchloom.cli.chaos.checking.case import Case

TIMEOUT = 20.0  # seconds
_AWAY = (502, 503)  # said while a part of the plane is away
_JOB = {"id", "name", "state", "reason", "step", "run_id", "attempt", "generation", "ranks"}
_SHAPES: Mapping[str, tuple[set[str], set[str]]] = {  # of the answer, and of each item of it
    "": (_JOB, set()),
    "/ranks": ({"items"}, {"rank", "node", "pid", "state", "step", "generation"}),
    "/events": ({"items", "next"}, {"time", "job", "kind", "rank"}),
    "/checkpoints": ({"items"}, {"job", "step", "generation", "state", "place"}),
}


def wrong(case: Case) -> tuple[str, ...]:
    """Return what is wrong with the answers; a plane that is away for a moment is not wrong."""
    return tuple(fact for path in _SHAPES for fact in _wrong(case, path))


def _wrong(case: Case, path: str) -> Iterator[str]:
    url = f"/api/jobs/{case.job}{path}"
    try:
        found = _asked(case, url)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in _AWAY:
            yield f"{url} was answered with {error.code}"
        return
    except ValueError:
        yield f"{url} was answered with no JSON"
        return
    except OSError:  # it is being started again
        return
    of_all, of_each = _SHAPES[path]
    if missing := of_all - found.keys():
        yield f"{url}: no {min(missing)} in the answer"
    for item in found.get("items") or ():
        if missing := of_each - item.keys():
            yield f"{url}: no {min(missing)} in an item"
            return


def _asked(case: Case, url: str) -> dict[str, Any]:
    token = (case.home / "plane" / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{case.api.rstrip('/')}{url}", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        found = json.load(answer)
    return found if isinstance(found, dict) else {}
