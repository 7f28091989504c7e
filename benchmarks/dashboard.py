"""The dashboard in a real browser: how soon it is there, and what it costs to keep it open.

One file a part: `dashboard_opening` (a page, a chart of a million points), `dashboard_charts`
(fifty that are live), `dashboard_hour` (what is left behind by an hour of updates). Times and tasks
are those of Chromium's own trace; whoever makes the numbers is a process of its own.
"""

import urllib.request

from benchmarks import dashboard_charts, dashboard_hour, dashboard_opening
from benchmarks.dashboard_browser import Site, built
from benchmarks.figure import Figure, Lab, once, series

SAMPLES = 10


def figures(lab: Lab) -> list[Figure]:
    """Return the figures of the dashboard; all are of one plane."""
    site = once(lambda: Site(lab))
    found = [
        figure
        for part in (dashboard_opening, dashboard_charts, dashboard_hour)
        for figure in part.figures(lab, site)
    ]
    weight = series("all scripts of the bundle, as they are sent", lambda: [weighed(site())])
    return [Figure("javascript", "kB, gzipped", weight), *found]


def weighed(site: Site) -> float:
    """Return what all scripts weigh on their way to a browser, whether it comes to load them."""
    scripts = [f"{site.url}/assets/{script.name}" for script in built().glob("assets/*.js")]
    ways = {"Accept-Encoding": "gzip, deflate, br, zstd"}
    sent = [urllib.request.urlopen(urllib.request.Request(each, headers=ways)) for each in scripts]
    return sum(len(answer.read()) for answer in sent) / 1000
