"""The same in S3: every request dies, is refused, cut, lost, doubled or torn; nothing is lost."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

from torchloom.checkpoint import Fenced, S3Storage
from torchloom.checkpoint.bucket import Bucket

from ..harness.http_proxy import FAULTS, Proxy, proxying
from ..harness.s3_server import S3Server, bucket
from .faults import FORMS, call_sites, site_of
from .scenarios import SCENARIOS, commit
from .sweeper import Sweeper, sweeping
from .witness import WORLD, content, plain_manifest, whole_steps_in

OF_WRITES = ("twice", "torn")
SITES = call_sites(("s3.py",), ("bucket", "_bucket"), Bucket)

pytestmark = [pytest.mark.process, pytest.mark.needs("s3")]


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """Give a proxy before the server."""
    with proxying(s3_server.endpoint) as proxy:
        yield proxy


@FORMS
def test_no_fault_of_any_request_loses_a_checkpoint(
    s3_server: S3Server, proxy: Proxy, tmp_path: Path, is_long: bool
) -> None:
    hit: dict[str, set[str]] = {site: set() for site in SITES}
    with sweeping() as sweeper:
        sweep = Sweep(s3_server, proxy, sweeper, tmp_path / "told")
        for scenario in SCENARIOS:
            sweep.run(scenario, 0, "none")
            requests = list(proxy.plan.methods)
            sites: dict[int, str] = {}  # of requests, once somebody died there

            for fault in FAULTS:
                been: set[str] = set()
                for at, method in enumerate(requests, 1):
                    if fault in OF_WRITES and method not in ("PUT", "POST"):
                        continue
                    if sites.get(at) in been and fault != "kill" and not is_long:
                        continue
                    told = sweep.run(scenario, at, fault)
                    sweep.check(scenario, told, f"{scenario}: {fault} at request {at}")
                    sites[at] = _site(proxy.plan.seen)
                    been.add(sites[at])
                    hit[sites[at]].add(fault)

    print(_table(hit))
    readers = set(FAULTS) - set(OF_WRITES)
    asks = ("get", "parts", "size", "sizes", "folders")
    assert hit == {site: readers if site.split(" ")[1] in asks else set(FAULTS) for site in SITES}


class Sweep:
    """One server, one proxy, a prefix of its own for each run."""

    def __init__(self, server: S3Server, proxy: Proxy, sweeper: Sweeper, told: Path) -> None:
        self._server = server
        self._proxy = proxy
        self._sweeper = sweeper
        self._told = told
        self._store = bucket(server.endpoint)
        self._runs = 0
        proxy.plan.watch = told.read_text

    def run(self, scenario: str, at: int, fault: str) -> list[str]:
        """Run a scenario in a child on the prepared prefix, and return what it told."""
        self._runs += 1
        self.prefix = f"sweep/{self._runs}"
        self._prepare(scenario)
        self._told.write_text("")
        plan = self._proxy.plan
        plan.set(at, fault)
        task = {
            "scenario": scenario,
            "root": self._server.url(self.prefix),
            "told": str(self._told),
            "endpoint": self._proxy.endpoint,
        }

        status = self._sweeper.run(task, lambda pid: setattr(plan, "victim", pid))

        lines = self._told.read_text().splitlines()
        dies = fault in ("kill", "killed")
        assert status == (-9 if dies else 0), f"{scenario}: {fault} at {at}: {lines[-3:]}"
        assert plan.seen is not None or not at, f"{scenario}: request {at} never came"
        return lines

    def check(self, scenario: str, told: list[str], when: str) -> None:
        """The newest is whole, is found, is not older than reported; and the run can go on."""
        good = whole_steps_in(self._objects())
        committed = [line.split()[1:] for line in told if line.startswith("committed")]
        reported = {int(step): int(generation) for step, generation in committed}
        kept = max(SCENARIOS[scenario].whole)
        root = self._server.url(self.prefix)
        storage = S3Storage(root, Bucket(root, self._store))

        assert storage.latest() == max(good), when
        assert max(good) >= max([kept, *reported]), when
        assert {step: good.get(step) for step in reported} == reported, when
        assert set(storage.committed()) <= {*good, *SCENARIOS[scenario].damaged}, when
        if "fence 1" in told:
            with pytest.raises(Fenced):
                commit(storage, 300, 0)
            assert 300 not in good, when

        if told[-1] != "end":  # it died; otherwise it went on by itself
            commit(storage, max(good) + 1, 9)
            assert storage.latest() == max(good) + 1, when

    def _prepare(self, scenario: str) -> None:
        before = SCENARIOS[scenario]
        for step in (*before.whole, *before.damaged, *before.drafts):
            self._put(step)
        for step in (*before.whole, *before.damaged):
            self._object(f"ckpt_step_{step:05d}/manifest.json", json.dumps(plain_manifest(step)))
        for step in before.damaged:
            self._object(f"ckpt_step_{step:05d}/g0-1/worker_0.pt", "damaged")
        if scenario != "committing":  # the first commit finds out what the store can do
            self._object("conditions", "put if absent")

    def _put(self, step: int) -> None:
        for rank in range(WORLD):
            key = f"ckpt_step_{step:05d}/g0-1/worker_{rank}.pt"
            obstore.put(self._store, f"{self.prefix}/{key}", content(step, rank))

    def _object(self, key: str, text: str) -> None:
        obstore.put(self._store, f"{self.prefix}/{key}", text.encode())

    def _objects(self) -> dict[str, bytes]:
        pages: Any = obstore.list(self._store, f"{self.prefix}/")
        paths = [found["path"] for page in pages for found in page]
        return {
            path.removeprefix(f"{self.prefix}/"): bytes(obstore.get(self._store, path).bytes())
            for path in paths
        }


def _site(told: str | None) -> str:
    """Return the site whose request it was when this had been told."""
    assert told is not None
    place = [line.split(" ", 1)[1] for line in told.splitlines() if line.startswith("call s3.py")][
        -1
    ]
    return site_of(place, SITES) or place


def _table(hit: dict[str, set[str]]) -> str:
    rows = [f"  {site:32} {' '.join(sorted(faults))}" for site, faults in sorted(hit.items())]
    return "\n".join([f"{len(hit)} call sites of a store in S3:", *rows])
