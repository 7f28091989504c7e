"""Whether ranks can meet here: ports on both addresses, and a name service that answers."""

import socket
from collections.abc import Iterator

from torchloom.launch.checks.finding import Finding, Place, note, ok, problem
from torchloom.launch.checks.lookup import own_address, reverse_seconds
from torchloom.settings import LOOPBACK

SLOW = 0.5  # seconds; a healthy resolver answers in a few thousandths
PATIENCE = 3.0
REMEDY = "export RES_OPTIONS='timeout:1 attempts:1', or add this host to /etc/hosts"


def ports(place: Place) -> Iterator[Finding]:
    """Meet ourselves on the loopback, and on the address that peers would use."""
    if text := meet(LOOPBACK):
        yield problem("ports", f"{LOOPBACK}: {text}", "bring up the loopback: ip link set lo up")
        return
    own = own_address(place.own_host, PATIENCE)
    if own is None:
        remedy = f"for ranks on other hosts: give {place.own_host} an address in /etc/hosts"
        yield note("ports", "the loopback works; this host has no other address", remedy)
    elif text := meet(own):
        remedy = f"{place.own_host} must resolve to an address of this host; open its firewall"
        yield problem("ports", f"{own}: {text}", remedy)
    else:
        yield ok("ports", f"open on the loopback and on {own}")


def names(place: Place) -> Iterator[Finding]:
    """Ask for the name of our address, as torch's TCPStore does at every connect."""
    address = own_address(place.own_host, PATIENCE) or LOOPBACK
    seconds = reverse_seconds(address, PATIENCE)
    if seconds is None:
        yield note("dns", f"the name of {address}: no answer in {PATIENCE:g} s", REMEDY)
    elif seconds > SLOW:
        yield note("dns", f"the name of {address} took {seconds:.1f} s", REMEDY)
    else:
        yield ok("dns", f"the name of {address} is answered in {seconds * 1000:.0f} ms")


def meet(address: str) -> str:
    """Listen on any port of an address and connect to it; return what went wrong."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as server, socket.socket(family) as client:
            server.bind((address, 0))
            server.listen(1)
            client.settimeout(PATIENCE)
            client.connect(server.getsockname())
    except OSError as error:
        return error.strerror or str(error)
    return ""
