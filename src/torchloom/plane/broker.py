"""Which NATS server a plane uses: an existing one that is ours, or one of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchloom.bus.nats.credentials import ADDRESS_VARIABLE, AUTHORITY_VARIABLE, DEFAULT_PORT
from torchloom.client import served
from torchloom.errors import Failure
from torchloom.plane import discovery, nats_server
from torchloom.plane.credentials import WEAVER, Credentials
from torchloom.plane.discovery import NatsAddress, NatsOwner
from torchloom.plane.parts import AGENT, PlaneOptions
from torchloom.settings import LOOPBACK


class NoBroker(Failure):
    """The requested NATS server cannot be used, and no other may be."""

    code = "no_broker"

    def __init__(self, address: NatsAddress, verdict: NatsOwner, remedy: str) -> None:
        super().__init__(
            f"no NATS server of this plane at {address.url}: {verdict.value}; {remedy}"
        )


@dataclass(frozen=True, slots=True)
class Broker:
    """A server's address; `embedded` when the plane runs it itself."""

    address: NatsAddress
    embedded: bool
    note: str = ""
    certificate: nats_server.Certificate | None = None
    authority: Path | None = None


def find(options: PlaneOptions, keys: Credentials, env: Mapping[str, str]) -> Broker:
    """Return the server to use; what answers and is not ours is left alone."""
    if options.host:
        return _at(options.host, keys)
    if options.only == AGENT:
        return _of_another(keys)
    address = discovery.named(env)
    authority = Path(env[AUTHORITY_VARIABLE]) if env.get(AUTHORITY_VARIABLE) else None
    verdict = discovery.owner_of(address, keys, authority)
    if verdict is NatsOwner.OURS:
        return Broker(address, embedded=False, authority=authority)
    if options.only == WEAVER:
        raise NoBroker(address, verdict, "`loom up` starts its own")
    if verdict is NatsOwner.NONE and address.chosen:
        return _where_chosen(address)
    free = NatsAddress(LOOPBACK, nats_server.free_port(LOOPBACK))
    if verdict is NatsOwner.NONE:
        return Broker(free, embedded=True)
    left = f"the NATS server at {address.url} is not used ({verdict.value})"
    note = f"{left}; this plane's is at {free.url}"
    return Broker(free, embedded=True, note=note)


def _of_another(keys: Credentials) -> Broker:
    """Return the server of the plane that serves this state folder from another host."""
    card = served.found()
    if card is None:
        raise Failure("no plane of this LOOM_HOME serves other hosts; `loom up --host ADDR` does")
    address = discovery.named({ADDRESS_VARIABLE: str(card["nats"])})
    authority = Path(card["authority"]) if card.get("authority") else None
    verdict = discovery.owner_of(address, keys, authority)
    if verdict is not NatsOwner.OURS:
        raise NoBroker(address, verdict, f"is the plane on {card.get('host')} up?")
    return Broker(address, embedded=False, authority=authority)


def _where_chosen(address: NatsAddress) -> Broker:
    """Use the free address that the user named, if it is on this host."""
    if not address.is_local or address.tls:
        raise NoBroker(address, NatsOwner.NONE, "start it, or unset LOOM_NATS and torchLoom_ADDR")
    host = LOOPBACK if address.host != "::1" else address.host
    return Broker(NatsAddress(host, address.port, chosen=True), embedded=True)


def _at(host: str, keys: Credentials) -> Broker:
    from torchloom.plane import certificates

    certificate = certificates.certificate(keys.folder, host)
    port = nats_server.free_port(host, DEFAULT_PORT)
    address = NatsAddress(host, port, tls=True, chosen=True)
    return Broker(address, True, certificate=certificate, authority=certificate.authority)
