"""The bus over a NATS server: core NATS, and the only importer of its client.

The client is made anew for each connection. Its own way of reconnecting keeps what is said while
it is cut off and ends handlers that are at work when it closes; neither is wanted here.
"""

import asyncio
import base64
import contextlib
import logging
import random
import ssl
from collections.abc import Coroutine, Iterator

import nats.errors
import nkeys
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from torchloom.bus.api import BusLost, NobodyAnswers, TooLong
from torchloom.bus.carrier import Carrier, Mailbox

_SHORTEST, _LONGEST = 0.05, 2.0  # seconds between two tries to connect
_CONNECT = 3  # seconds a server has to let us in
_PING = 10  # seconds between two looks whether the server still answers
_MISSED = 2  # looks in a row without an answer that mean it does not
_A_MOMENT = 0.0005
_LOOK = 0.5  # seconds between two looks whether the client gave up in silence
_MOST_UNSENT = 8 << 20  # bytes the server may leave untaken before we call it lost

_log = logging.getLogger(__name__)


class NatsBus(Carrier):
    """One connection to a NATS server, made again for as long as it takes.

    `start` comes back at once: subscriptions may be made before the server is there.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: tuple[str, str] | None = None,  # a user's JWT and the seed of its key
        inbox: str = "",
        name: str = "torchloom",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(inbox)
        self.last_error = ""
        self._url = url
        self._credentials = credentials
        self._name = name
        self._tls = tls
        self._client: Client | None = None
        self._subscriptions: dict[Mailbox, Subscription] = {}
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        credentials: tuple[str, str] | None = None,
        inbox: str = "",
        name: str = "torchloom",
        tls: ssl.SSLContext | None = None,
        patience: float = 5.0,
    ) -> "NatsBus":
        """Return a bus that is connected; raises BusLost when no server lets us in in time."""
        bus = cls(url, credentials=credentials, inbox=inbox, name=name, tls=tls)
        arrived = asyncio.Event()
        bus.on_back(arrived.set)
        bus.start()
        try:
            async with asyncio.timeout(patience):
                await arrived.wait()
        except TimeoutError:
            await bus.close()
            why = bus.last_error or "no answer"
            raise BusLost(f"no NATS server lets us in at {url}: {why}") from None
        return bus

    def start(self) -> None:
        """Begin to connect, and go on for ever."""
        self._task = self._task or asyncio.create_task(self._stay_connected(), name="nats")

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected and not self._closed

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        client = self._live()
        if client.pending_data_size > _MOST_UNSENT:
            raise BusLost(f"cannot say anything on {subject}: the server takes nothing")
        with _mapped(subject):
            await client.publish(subject, data, reply)

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        client = self._live()
        try:
            with _mapped("flush"):
                async with asyncio.timeout(timeout):
                    await _written(client)
                    await client.flush(max(1, round(timeout)))
        except TimeoutError:
            raise BusLost("the server does not answer") from None

    async def _stay_connected(self) -> None:
        wait = _SHORTEST
        while True:
            client = await self._connect()
            if client is not None:
                wait = _SHORTEST
                await self._serve(client)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(_LONGEST, wait * 2)

    async def _connect(self) -> Client | None:
        client = Client()
        self._ended = asyncio.Event()
        key = self._credentials and _Key(*self._credentials)
        try:
            await client.connect(
                self._url,
                name=self._name,
                allow_reconnect=False,
                connect_timeout=_CONNECT,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                ping_interval=_PING,
                max_outstanding_pings=_MISSED,
                pending_size=4 * _MOST_UNSENT,
                tls=self._tls,
                error_cb=self._complained,
                closed_cb=self._has_ended,
                user_jwt_cb=key.jwt if key else None,
                signature_cb=key.sign if key else None,
            )
        # The client raises what its many layers have: errors of NATS, of sockets, TLS, assertions.
        except Exception as error:
            self.last_error = str(error) or type(error).__name__
            self._discard(client)
            return None
        return client

    async def _serve(self, client: Client) -> None:
        """Carry messages until the connection is lost."""
        try:
            await client.subscribe(f"{self._inbox}.*", cb=self._take_answer)
            self._client = client
            for mailbox in list(self._mailboxes):
                await self._listen(mailbox)
            self._tell_back()
            while client.is_connected:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._ended.wait()
                    break
        except nats.errors.Error as error:
            self.last_error = str(error)
        finally:
            self._client = None
            self._subscriptions.clear()
            self._discard(client)
        if not self._closed:
            self._tell_lost()

    async def _listen(self, mailbox: Mailbox) -> None:
        if self._client is None or mailbox in self._subscriptions:
            return  # it is done as soon as there is a server

        async def take(message: Msg) -> None:
            mailbox.put(message.subject, message.data, message.reply)

        with contextlib.suppress(nats.errors.Error):  # lost in this moment: done at the next one
            self._subscriptions[mailbox] = await self._client.subscribe(mailbox.subject, cb=take)

    def _unlisten(self, mailbox: Mailbox) -> None:
        subscription = self._subscriptions.pop(mailbox, None)
        if subscription is not None and self.connected:
            self._in_background(_unsubscribe(subscription))

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if client is not None:
            self._discard(client)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _live(self) -> Client:
        if self._client is None or not self._client.is_connected or self._closed:
            raise BusLost(f"no connection to the NATS server at {self._url}: {self.last_error}")
        return self._client

    def _discard(self, client: Client) -> None:
        self._in_background(_close(client))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _take_answer(self, message: Msg) -> None:
        nobody = not message.data and (message.headers or {}).get("Status") == "503"
        self._answered(message.subject, None if nobody else message.data)

    async def _has_ended(self) -> None:
        self._ended.set()

    async def _complained(self, error: Exception) -> None:
        self.last_error = str(error) or type(error).__name__
        _log.debug("nats: %s", self.last_error)


@contextlib.contextmanager
def _mapped(subject: str) -> Iterator[None]:
    try:
        yield
    except nats.errors.MaxPayloadError as error:
        raise TooLong(f"the server takes no message of this length on {subject}") from error
    except nats.errors.BadSubjectError as error:
        raise ValueError(f"{subject!r} is no subject to speak on") from error
    except nats.errors.NoRespondersError as error:
        raise NobodyAnswers(f"nobody listens on {subject}") from error
    except (nats.errors.Error, OSError) as error:
        raise BusLost(f"{subject}: {error}") from error


class _Key:
    """What a user shows a server: a JWT, and that it has the seed which the JWT is for."""

    def __init__(self, jwt: str, seed: str) -> None:
        self._jwt = jwt
        self._seed = seed

    def jwt(self) -> bytes:
        return self._jwt.encode()

    def sign(self, nonce: str) -> bytes:
        pair = nkeys.from_seed(bytearray(self._seed.encode()))
        signed = base64.b64encode(pair.sign(nonce.encode()))
        pair.wipe()
        return signed


async def _written(client: Client) -> None:
    """Come back when the client has written what it holds; its ping would overtake that."""
    while client.pending_data_size:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(_A_MOMENT)


async def _unsubscribe(subscription: Subscription) -> None:
    with contextlib.suppress(nats.errors.Error):
        await subscription.unsubscribe()


async def _close(client: Client) -> None:
    """Close what may hang: a server that was stopped takes no last words."""
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError, AssertionError):
        async with asyncio.timeout(1.0):
            await client.close()
