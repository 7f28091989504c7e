"""A server is called by its own names, and by pages of its own."""

import pytest

from torchloom.server.security.guard import BadOrigin, Reach, reach


def test_a_server_on_loopback_has_the_names_of_loopback_with_its_port() -> None:
    assert reach(8787) == Reach(
        frozenset({"localhost:8787", "127.0.0.1:8787", "[::1]:8787"}),
        frozenset({"http://localhost:8787", "http://127.0.0.1:8787", "http://[::1]:8787"}),
    )


def test_a_server_with_tls_has_its_address_and_pages_that_came_encrypted() -> None:
    found = reach(443, "10.1.2.3", tls=True)

    assert {"10.1.2.3", "10.1.2.3:443", "localhost"} <= found.hosts
    assert {"https://10.1.2.3", "https://localhost"} <= found.origins
    assert not any(origin.startswith("http:") for origin in found.origins)


def test_further_origins_are_named_by_whoever_runs_it() -> None:
    found = reach(8787, extra="http://localhost:9000, https://loom.example.org")

    assert {"localhost:9000", "loom.example.org", "loom.example.org:443"} <= found.hosts
    assert {"http://localhost:9000", "https://loom.example.org"} <= found.origins


def test_an_address_of_ipv6_is_written_as_browsers_do() -> None:
    assert "[fd00::1]:8787" in reach(8787, "FD00::1").hosts


@pytest.mark.parametrize(
    "text",
    [
        *("*", "localhost", "localhost:9000", "ftp://x", "http://", "http://*.example.org"),
        *("http://a/path", "http://a?b", "http://u@a", "http://a:99999", "null"),
    ],
)
def test_what_is_no_origin_is_refused_with_how_one_looks(text: str) -> None:
    with pytest.raises(BadOrigin, match=r"LOOM_ORIGINS has .* http://localhost:9000"):
        reach(8787, extra=text)
