"""Which NATS a plane uses: one that is there and is ours, or one of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchloom.bus.address import ADDRESS_VARIABLE, AUTHORITY_VARIABLE, DEFAULT_PORT
from torchloom.client import served
from torchloom.errors import Failure
from torchloom.settings import LOOPBACK
from torchloom.weaver.plane import discovery, nats_server
from torchloom.weaver.plane.credentials import WEAVER, Credentials
from torchloom.weaver.plane.discovery import Address, Verdict
from torchloom.weaver.plane.parts import AGENT
from torchloom.weaver.plane.wishes import Wishes


class NoBroker(Failure):
    """The NATS that is wanted cannot be used, and no other is."""

    code = "no_broker"

    def __init__(self, address: Address, verdict: Verdict, remedy: str) -> None:
        super().__init__(f"no NATS of ours at {address.url}: {verdict.value}; {remedy}")


@dataclass(frozen=True, slots=True)
class Broker:
    """A server's address; `embedded` when the plane runs it itself."""

    address: Address
    embedded: bool
    note: str = ""
    certificate: nats_server.Certificate | None = None
    authority: Path | None = None


def find(wishes: Wishes, keys: Credentials, env: Mapping[str, str]) -> Broker:
    """Return the server to use; what answers and is not ours is left alone."""
    if wishes.host:
        return _at(wishes.host, keys)
    if wishes.only == AGENT:
        return _of_another(keys)
    address = discovery.named(env)
    authority = Path(env[AUTHORITY_VARIABLE]) if env.get(AUTHORITY_VARIABLE) else None
    verdict = discovery.whose(address, keys, authority)
    if verdict is Verdict.OURS:
        return Broker(address, embedded=False, authority=authority)
    if wishes.only == WEAVER:
        raise NoBroker(address, verdict, "`loom up` brings its own")
    if verdict is Verdict.NOBODY and address.chosen:
        return _where_chosen(address)
    free = Address(LOOPBACK, nats_server.free_port(LOOPBACK))
    if verdict is Verdict.NOBODY:
        return Broker(free, embedded=True)
    note = f"the NATS at {address.url} is left alone ({verdict.value}); ours is at {free.url}"
    return Broker(free, embedded=True, note=note)


def _of_another(keys: Credentials) -> Broker:
    """Return the server of the plane that serves this state folder from another host."""
    told = served.found()
    if told is None:
        raise Failure("no plane of this LOOM_HOME serves other hosts; `loom up --host ADDR` does")
    address = discovery.named({ADDRESS_VARIABLE: str(told["nats"])})
    authority = Path(told["authority"]) if told.get("authority") else None
    verdict = discovery.whose(address, keys, authority)
    if verdict is not Verdict.OURS:
        raise NoBroker(address, verdict, f"is the plane on {told.get('host')} up?")
    return Broker(address, embedded=False, authority=authority)


def _where_chosen(address: Address) -> Broker:
    """Take the free place that the user named, if it is on this host."""
    if not address.is_local or address.tls:
        raise NoBroker(address, Verdict.NOBODY, "start it, or unset LOOM_NATS and torchLoom_ADDR")
    host = LOOPBACK if address.host != "::1" else address.host
    return Broker(Address(host, address.port, chosen=True), embedded=True)


def _at(host: str, keys: Credentials) -> Broker:
    from torchloom.weaver.plane import certificates

    certificate = certificates.certificate(keys.folder, host)
    port = nats_server.free_port(host, DEFAULT_PORT)
    address = Address(host, port, tls=True, chosen=True)
    return Broker(address, True, certificate=certificate, authority=certificate.authority)
