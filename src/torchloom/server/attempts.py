"""How often links may be tried that do not count: after some failures the next one waits longer.

Failures are counted by address and account where the link says whose it was, by address alone
where nothing is known of it. A link that counts is never refused for failures of others: whether
it does is looked up first.
"""

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torchloom.server.connections import counted_address
from torchloom.server.problems import ApiProblem
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import LinkRow
from torchloom.weaver.users import hash_of

_FREE = 10  # failures without a wait
_FIRST, _LONGEST = 2.0, 900.0  # seconds to wait, doubled by each failure behind those
_FORGOTTEN = 3600.0  # seconds without a failure
_KEYS = 10_000  # that are remembered; the one that was quiet longest is forgotten


@dataclass(frozen=True, slots=True)
class Claim:
    """What the code of a link says: whose it is, if it is known, and whether it lets them in."""

    account: str
    is_good: bool


def claim_of(state: StateStore, code: str, now: float) -> Claim:
    """Look up the code of a link by its hash; using it up is the weaver's."""
    link = state.one(LinkRow, hash=hash_of(code))
    if link is None or not hmac.compare_digest(link.hash, hash_of(code)):
        return Claim("", is_good=False)
    return Claim(link.user, link.used_at is None and now < link.expires_at)


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    last: float
    until: float  # when the next one is looked at


class Attempts:
    """Failures in this process' memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def check(self, address: str, account: str = "") -> None:
        """Refuse a link that does not count, where too many of them did not."""
        failures = self._failed.get(_key(address, account))
        now = self._clock()
        if failures is None or now >= failures.until:
            return
        wait = str(int(failures.until - now) + 1)
        raise ApiProblem(
            429,
            "too_many_logins",
            f"{failures.count} links from this address did not count",
            remedy=f"wait {wait} s, or use a new link, which is taken at once",
            headers={"Retry-After": wait},
        )

    def failed(self, address: str, account: str = "") -> None:
        """Remember a failure."""
        key, now = _key(address, account), self._clock()
        before = self._failed.get(key)
        count = 1 if before is None or now - before.last >= _FORGOTTEN else before.count + 1
        doublings = min(count - _FREE, 30)
        wait = 0.0 if doublings < 0 else min(_FIRST * 2**doublings, _LONGEST)
        self._failed[key] = _Failures(count, now, now + wait)
        self._failed.move_to_end(key)
        while len(self._failed) > _KEYS:
            self._failed.popitem(last=False)


def _key(address: str, account: str) -> tuple[str, str]:
    return counted_address(address), account
