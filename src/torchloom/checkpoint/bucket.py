"""Every request that a store in S3 makes; the only module that imports obstore.

Obstore retries temporary failures (5xx, a lost connection) a few times; what then still fails
is StoreUnavailable, and whether it was carried out is not known.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from torchloom.checkpoint.errors import BadRoot, StoreUnavailable
from torchloom.checkpoint.storage import bucket_of

if TYPE_CHECKING:
    from obstore.store import S3Store

PART = 8 * 2**20  # bytes of a part of a large object
_MOST_PARTS = 9000  # S3 takes 10,000
_BESIDE = 4  # parts on their way at a time
_VARIABLES = (
    ("endpoint", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    ("region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
    ("access_key_id", ("AWS_ACCESS_KEY_ID",)),
    ("secret_access_key", ("AWS_SECRET_ACCESS_KEY",)),
    ("session_token", ("AWS_SESSION_TOKEN",)),
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: its bytes, and the tag that names this version of it."""

    data: bytes
    tag: str


class Bucket:
    """The objects below one prefix of one bucket; keys are relative to it."""

    def __init__(self, root: str, store: "S3Store", part: int = PART) -> None:
        self.root = root
        self.part = part
        self._prefix = f"{bucket_of(root)[1]}/".removeprefix("/")
        self._store = store

    @classmethod
    def at(cls, root: str, env: Mapping[str, str]) -> "Bucket":
        """Return the bucket of a root, with the keys and the address in the usual variables."""
        return cls(root, _store(bucket_of(root)[0], env))

    def put(self, key: str, parts: Iterable[memoryview], size: int) -> None:
        """Store an object, large or small, whatever was there; it is whole or not at all."""
        with self._asked():
            obstore.put(
                self._store,
                self._prefix + key,
                iter(parts),
                use_multipart=size > self.part,
                chunk_size=max(self.part, -(-size // _MOST_PARTS)),
                max_concurrency=_BESIDE,
            )

    def put_new(self, key: str, data: bytes) -> bool:
        """Store a small object where there is none (If-None-Match: *); False where there is."""
        with self._asked(), contextlib.suppress(AlreadyExistsError):
            obstore.put(self._store, self._prefix + key, data, mode="create")
            return True
        return False

    def replace(self, key: str, data: bytes, tag: str) -> bool:
        """Store a small object in place of this version (If-Match); False where it is another."""
        with self._asked(), contextlib.suppress(PreconditionError, FileNotFoundError):
            obstore.put(self._store, self._prefix + key, data, mode={"e_tag": tag})
            return True
        return False

    def get(self, key: str, most: int) -> StoredObject | None:
        """Return a small object, or its first bytes, or None where there is none."""
        with self._asked(), contextlib.suppress(FileNotFoundError):
            answer = obstore.get(self._store, self._prefix + key)
            if answer.meta["size"] > most:
                data = obstore.get_range(self._store, self._prefix + key, start=0, length=most)
            else:
                data = answer.bytes()
            return StoredObject(bytes(data), answer.meta["e_tag"] or "")
        return None

    def parts(self, key: str) -> Iterator[memoryview]:
        """Yield the bytes of an object in order; FileNotFoundError where there is none."""
        size = self.size(key)
        if size is None:
            raise FileNotFoundError(key)
        asked: deque[Future[Any]] = deque()
        with self._asked(absent=True), ThreadPoolExecutor(_BESIDE, "loom-read") as beside:
            for start in range(0, size, self.part):
                length = min(self.part, size - start)
                asked.append(beside.submit(self._part, key, start, length))
                if len(asked) == _BESIDE:
                    yield memoryview(asked.popleft().result())
            for part in asked:
                yield memoryview(part.result())

    def _part(self, key: str, start: int, length: int) -> Any:
        # One request for all of it would have to end within the client's limit of time.
        return obstore.get_range(self._store, self._prefix + key, start=start, length=length)

    def size(self, key: str) -> int | None:
        """Return the size of an object, or None where there is none."""
        with self._asked(), contextlib.suppress(FileNotFoundError):
            return int(obstore.head(self._store, self._prefix + key)["size"])
        return None

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the keys in a folder, however deep, relative to it, with their sizes."""
        start = f"{self._prefix}{folder}/"
        with self._asked():
            return {
                str(found["path"]).removeprefix(start): int(found["size"])
                for page in obstore.list(self._store, start)
                for found in page
            }

    def folders(self) -> list[str]:
        """Return the names of the folders at the top."""
        with self._asked():
            answer = obstore.list_with_delimiter(self._store, self._prefix or None)
        return [str(name).rstrip("/").rpartition("/")[2] for name in answer["common_prefixes"]]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are fine."""
        for key in keys:
            with self._asked(), contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, self._prefix + key)

    @contextlib.contextmanager
    def _asked(self, absent: bool = False) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if absent:
                raise
            raise StoreUnavailable(self.root, "the bucket does not exist") from None
        except (BaseError, OSError) as error:
            raise StoreUnavailable(self.root, _first_line(error)) from error


def _store(bucket: str, env: Mapping[str, str]) -> "S3Store":
    from obstore.store import S3Store

    options = {"region": "us-east-1"}
    for option, variables in _VARIABLES:
        if value := next((env[name] for name in variables if env.get(name)), None):
            options[option] = value
    endpoint = options.get("endpoint", "")
    if endpoint and "access_key_id" not in options:
        raise BadRoot(
            "no credentials for the S3 store; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return S3Store(
        bucket,
        virtual_hosted_style_request=not endpoint,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": "5s",
            "timeout": "60s",
        },
        retry_config={
            "max_retries": 3,
            "retry_timeout": timedelta(seconds=60),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        },
        **options,  # type: ignore[arg-type]
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
