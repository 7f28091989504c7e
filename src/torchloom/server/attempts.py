"""How often an address may guess: after some failures within a minute it waits."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable

from torchloom.server.problems import ApiProblem

_MOST = 10  # failures of one address
_SPAN = 60.0  # seconds
_ADDRESSES = 10_000  # that are remembered; the one that was quiet longest is forgotten


class Attempts:
    """Failures by address, in this process' memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Refuse an address that has failed too often; the others are let through."""
        failed = self._failed.get(address, deque())
        now = self._clock()
        while failed and now - failed[0] >= _SPAN:
            failed.popleft()
        if len(failed) >= _MOST:
            wait = str(int(_SPAN - (now - failed[0])) + 1)
            raise ApiProblem(
                429,
                "too_many_logins",
                f"{_MOST} logins from this address have failed within a minute",
                remedy=f"wait {wait} s, then use a new link",
                headers={"Retry-After": wait},
            )

    def failed(self, address: str) -> None:
        """Remember that an address has failed."""
        self._failed.setdefault(address, deque()).append(self._clock())
        self._failed.move_to_end(address)
        while len(self._failed) > _ADDRESSES:
            self._failed.popitem(last=False)
