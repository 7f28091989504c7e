"""A plane over HTTP as a Python object: jobs, commands, metrics, logs, experiments.

    client = Client("https://plane:8787", token, fingerprint)
    job = client.submit({"name": "try", "script": "train.py"})
    for line in client.logs(job["id"]):
        print(line["message"])

What the plane refuses is raised as `Refused`, with its message; `httpx` is imported on first use.
"""

import json
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from torchloom.client import trust
from torchloom.client.errors import Unreachable
from torchloom.errors import Failure, UserError, shorten
from torchloom.settings import LOOPBACK_NAMES

if TYPE_CHECKING:
    import httpx

TIMEOUT = 75.0  # seconds; a command may wait for a minute
OVER = ("COMPLETED", "FAILED", "CANCELLED")
_PAGE, _MOST = 200, 1000  # items of a page, and the most that a plane gives
_POLL = 0.5  # seconds between two requests for new lines
_BATCH, _BATCH_BYTES = 256, 900_000  # jobs and bytes of a batch; a plane takes no more
_CANCEL = "/api/jobs/cancel"


class Refused(UserError):
    """The plane refused a request; the message is its own."""

    def __init__(self, status: int, reply: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(reply.get("code") or "refused")
        self.field = reply.get("field")
        self.remedy = reply.get("remedy")
        words = [str(reply.get("detail") or f"the plane answered {status}"), self.remedy]
        super().__init__("; ".join(str(word) for word in words if word))


class PlaneFailed(Failure):
    """The plane failed to carry out a valid request."""

    code = "plane_failed"


class BadUrl(UserError):
    """What was given as a plane's address is none, or it cannot be verified who answers there."""

    code = "bad_url"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{shorten(url)!r} {why}; a plane's address is https://HOST:PORT")


class Client:
    """The HTTP API of a plane as one user sees it.

    Jobs, runs and other items are dictionaries, as the REST API returns them. Connections are
    opened on use and closed by `close` or at the end of a `with` block.

    Args:
        url: The address of the plane, as `loom up --status` shows it.
        token: The token of the user (`loom tokens add USER`).
        fingerprint: The fingerprint of the plane's certificate authority, for a plane with TLS on
            another host.
        authority: The certificate authority itself, instead of its fingerprint.
        timeout: Seconds to wait for a reply.

    Raises:
        BadUrl: The address is not one, or a token sent there could be read by others.
        Refused: By a method: the plane refused the request; `code` and `remedy` say why.
        PlaneFailed: By a method: the plane failed.
        Unreachable: By a method: the plane does not answer.

    Example:
        >>> from torchloom.client import Client
        >>> with Client(url, token) as client:
        ...     job = client.submit({"name": "gpt", "script": "train.py"})
        ...     client.set(job["id"], {"lr": 3e-4})
        ...     for line in client.follow(job["id"]):
        ...         print(line["rank"], line["message"])
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        fingerprint: str = "",
        *,
        authority: str = "",
        timeout: float = TIMEOUT,
    ) -> None:
        self.url = address(url)
        self._token = token
        self._fingerprint = fingerprint
        self._authority = authority
        self._timeout = timeout
        self._http: httpx.Client | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"  # and not the token

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def plane(self) -> dict[str, Any]:
        """Return the status of the plane: its start, its agents, its records."""
        return self._one("GET", "/api/plane")

    def me(self) -> dict[str, Any]:
        """Return the user of this token and their role."""
        return self._one("GET", "/api/me")

    def login(self, code: str, label: str = "") -> dict[str, Any]:
        """Exchange the code of a one-time link for a token."""
        return self._one("POST", "/api/login", json={"code": code, "kind": "token", "label": label})

    def link(self, user: str) -> dict[str, Any]:
        """Create a one-time link for a user. Its `code` is not shown again. For admins."""
        return self._one("POST", "/api/links", json={"user": user})

    def my_tokens(self) -> list[dict[str, Any]]:
        """Return the tokens and cookies of this user."""
        return list(self._pages("/api/me/tokens"))

    def logout(self) -> None:
        """Revoke the token of this client."""
        self._ask("POST", "/api/logout")

    def jobs(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield jobs, newest first.

        Args:
            **filters: Parameters of `GET /api/jobs`, such as `state`, `owner`, `name`, `project`,
                `tag` and `since`.
        """
        return self._pages("/api/jobs", filters)

    def job(self, job: str) -> dict[str, Any]:
        """Return one job with its ranks."""
        return self._one("GET", f"/api/jobs/{_part(job)}")

    def ranks(self, job: str) -> list[dict[str, Any]]:
        """Return the ranks of a job: node, state, step, devices."""
        return list(self._pages(f"/api/jobs/{_part(job)}/ranks"))

    def submit(
        self, spec: Mapping[str, Any], key: str = "", cwd: str | None = None
    ) -> dict[str, Any]:
        """Submit a job and return it.

        Args:
            spec: The job spec, as in a job file.
            key: An idempotency key: a repeated request with the same key returns the same job.
            cwd: The folder in which the job runs, if the spec does not name one.
        """
        return self._one("POST", "/api/jobs", json=spec, key=key, params=_given(cwd=cwd))

    def submit_many(
        self,
        specs: Sequence[Mapping[str, Any]],
        keys: Sequence[str] | None = None,
        cwd: str | None = None,
    ) -> list[dict[str, Any]]:
        """Submit jobs in batches; return the `status` of each, and its `job` or its `problem`.

        A job that is refused does not affect the others. `keys` are idempotency keys, one per
        job: if a reply is lost, repeat the call with the same keys to get the same jobs.
        """
        keys = keys if keys is not None else [uuid.uuid4().hex for _ in specs]
        items = [{"spec": spec, "key": key} for spec, key in zip(specs, keys, strict=True)]
        found: list[dict[str, Any]] = []
        for batch in _batches(items):
            path, params = "/api/jobs", _given(cwd=cwd)
            found += self._one("POST", path, json={"items": batch}, params=params)["items"]
        return found

    def cancel_many(
        self,
        jobs: Sequence[str] | None = None,
        state: Sequence[str] | None = None,
        owner: str | None = None,
        reason: str = "",
    ) -> list[dict[str, Any]]:
        """Cancel jobs by id, or all jobs in some states; return the outcome of each."""
        asked = {**_given(state=state, owner=owner), "reason": reason}
        if jobs is not None:
            parts = [list(jobs[begin : begin + _MOST]) for begin in range(0, len(jobs), _MOST)]
            answers = (self._one("POST", _CANCEL, json={**asked, "jobs": part}) for part in parts)
            return [one for answer in answers for one in answer["items"]]
        found: list[dict[str, Any]] = []
        while True:
            answer = self._one("POST", _CANCEL, json=asked)
            found += answer["items"]
            if not answer["left"] or all(one["problem"] for one in answer["items"]):
                return found

    def cancel(self, job: str, reason: str = "") -> dict[str, Any]:
        """Cancel a job: end its ranks at once, or remove it from the queue."""
        return self._one("DELETE", f"/api/jobs/{_part(job)}", params=_given(reason=reason or None))

    def command(self, job: str, verb: str, key: str = "", **facts: Any) -> dict[str, Any]:
        """Send a command to a job and wait for its outcome.

        Args:
            job: The job.
            verb: `set`, `undo`, `pause`, `resume`, `resize`, `checkpoint` or `stop`.
            key: An idempotency key: a repeated request with the same key acts once.
            **facts: Further fields of `POST /api/jobs/{job}/commands`, such as `values`, `at`,
                `reason`, `guard` and `wait`.
        """
        asked = {"verb": verb, **_given(**facts)}
        return self._one("POST", f"/api/jobs/{_part(job)}/commands", json=asked, key=key)

    def set(self, job: str, values: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
        """Change knobs of a running job on all ranks at one step; `facts` are as in `command`."""
        return self.command(job, "set", values=dict(values), **facts)

    def commands(self, job: str) -> Iterator[dict[str, Any]]:
        """Yield the commands of a job, in order."""
        return self._pages(f"/api/jobs/{_part(job)}/commands")

    def checkpoints(self, job: str) -> Iterator[dict[str, Any]]:
        """Yield the checkpoints of a job, newest first, including failed ones."""
        return self._pages(f"/api/jobs/{_part(job)}/checkpoints")

    def remove_checkpoint(
        self, job: str, step: int, force: bool = False, reason: str = ""
    ) -> dict[str, Any]:
        """Remove the checkpoint of a step. With `force`, even the newest one is removed."""
        asked = _given(force=True if force else None, reason=reason or None)
        return self._one("DELETE", f"/api/jobs/{_part(job)}/checkpoints/{step}", params=asked)

    def events(self, job: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a job."""
        return self._pages(f"/api/jobs/{_part(job)}/events")

    def newest(self, job: str, limit: int) -> list[dict[str, Any]]:
        """Return the last events of a job, in order of time."""
        path, params = f"/api/jobs/{_part(job)}/events", {"limit": min(limit, _MOST)}
        found: list[dict[str, Any]] = self._one("GET", path, params=params)["items"]
        return found

    def knobs(self, job: str) -> list[dict[str, Any]]:
        """Return the knobs of a job and their values."""
        return list(self._pages(f"/api/jobs/{_part(job)}/knobs"))

    def metrics(self, job: str, **filters: Any) -> dict[str, Any]:
        """Return curves of a job; `filters` are the parameters of `GET /api/jobs/{job}/metrics`."""
        return self._one("GET", f"/api/jobs/{_part(job)}/metrics", params=_given(**filters))

    def logs(self, job: str, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield the lines that a job has written so far.

        Args:
            job: The job.
            **filters: Parameters of `GET /api/jobs/{job}/logs`, such as `rank`, `level`, `regex`
                and `since`.
        """
        return self._pages(f"/api/jobs/{_part(job)}/logs", filters)

    def follow(self, job: str, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield the lines of a job as it writes them, until it has ended."""
        path, params = f"/api/jobs/{_part(job)}/logs", {"limit": _PAGE, **_given(**filters)}
        while True:
            page = self._one("GET", path, params=params)
            yield from page["items"]
            if not page["next"]:
                return
            params["cursor"] = page["next"]
            if not page["items"]:
                if self._is_over(job):
                    return
                time.sleep(_POLL)

    def experiments(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield runs, newest first."""
        return self._pages("/api/experiments", filters)

    def experiment(self, run: str) -> dict[str, Any]:
        """Return one run: config, results, source, environment."""
        return self._one("GET", f"/api/experiments/{_part(run)}")

    def compare(self, runs: Sequence[str]) -> dict[str, Any]:
        """Compare runs: one row per value, one column per run."""
        return self._one("POST", "/api/experiments/compare", json={"runs": list(runs)})

    def queue(self) -> list[dict[str, Any]]:
        """Return the waiting jobs and the reason of each."""
        return list(self._pages("/api/cluster/queue"))

    def devices(self) -> dict[str, Any]:
        """Return every device, its state and the ranks that use it."""
        return self._one("GET", "/api/devices")

    def device_event(self, device: str, state: str, **facts: Any) -> dict[str, Any]:
        """Report the state of a device: `healthy`, `draining` or `failed`."""
        event = {"state": state, **_given(**facts)}
        return self._one("POST", f"/api/devices/{quote(device)}/events", json=event)

    def stacks(self, job: str) -> dict[str, Any]:
        """Return the stacks of every rank of a job, and which rank blocks the others."""
        return self._one("GET", f"/api/jobs/{_part(job)}/stacks")

    def authority(self) -> str:
        """Return the certificate authority that this client trusts; empty if none is pinned."""
        if not self._authority and self._fingerprint and self.url.startswith("https:"):
            found = trust.fetch(self.url)
            self._authority = trust.checked(self.url, found, self._fingerprint)
        return self._authority

    def _is_over(self, job: str) -> bool:
        return self.job(job)["state"] in OVER

    def _pages(
        self, path: str, filters: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        params = {"limit": _PAGE, **_given(**(filters or {}))}
        while True:
            page = self._one("GET", path, params=params)
            yield from page["items"]
            cursor = page.get("next")
            if not cursor or cursor == params.get("cursor"):
                return
            params["cursor"] = cursor

    def _one(self, method: str, path: str, **words: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(method, path, **words)
        return found

    def _ask(
        self, method: str, path: str, *, key: str = "", params: Any = None, json: Any = None
    ) -> Any:
        import httpx

        headers = {"Idempotency-Key": key or uuid.uuid4().hex} if method == "POST" else {}
        try:
            answer = self._open().request(method, path, headers=headers, params=params, json=json)
        except httpx.HTTPError as error:
            is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            why = f"{self.url} does not answer: {_reason(error)}"
            raise Unreachable(why, is_unsent) from error
        if answer.is_success:
            return answer.json() if answer.content else None
        raise _problem(answer)

    def _open(self) -> "httpx.Client":
        if self._http is None:
            import httpx

            authority = self.authority()
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
                verify=trust.context(authority) if authority else True,
                timeout=self._timeout,
                trust_env=False,  # a proxy would see the token, or would be asked for loopback
            )
            weakref.finalize(self, self._http.close)  # of one that was not closed
        return self._http


def address(url: str) -> str:
    """Return a plane's base URL; without TLS only on this host, for tokens are sent to it."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise BadUrl(url, "is not an address") from None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        raise BadUrl(url, "is not an address")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise BadUrl(url, "has more than host and port")
    if parts.scheme == "http" and host not in LOOPBACK_NAMES:
        raise BadUrl(
            url, "is not this host and not encrypted: others could read a token sent there"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}"


def _problem(answer: "httpx.Response") -> Exception:
    try:
        reply = answer.json()
    except ValueError:
        reply = {}
    reply = reply if isinstance(reply, dict) else {}
    if answer.status_code >= 500:
        return PlaneFailed(str(reply.get("detail") or f"the plane answered {answer.status_code}"))
    return Refused(answer.status_code, reply)


def _reason(error: Exception) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not from the pinned authority; run `loom login` again"
    return text or type(error).__name__


def _batches(items: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield items in their order, as many at a time as a plane takes."""
    batch: list[dict[str, Any]] = []
    length = 0
    for item in items:
        size = len(json.dumps(item)) + 2
        if batch and (len(batch) == _BATCH or length + size > _BATCH_BYTES):
            yield batch
            batch, length = [], 0
        batch.append(item)
        length += size
    if batch:
        yield batch


def _given(**facts: Any) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _part(name: str) -> str:
    return quote(name, safe="")
