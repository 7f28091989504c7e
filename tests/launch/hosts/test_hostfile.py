from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.launch.hosts.host_lists import (
    BadHostfile,
    HostSlots,
    MissingHostfile,
    Style,
    index_of,
    parse_hosts,
    read_hosts,
    render_hosts,
    same_host,
)

A2_B1 = (HostSlots("a", 2), HostSlots("b", 1))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a\nb\n", (HostSlots("a"), HostSlots("b"))),
        ("a\na\nb\n", (HostSlots("a", 2), HostSlots("b"))),
        ("a slots=2\nb slots=1 max_slots=4\n", A2_B1),
        ("a:2\nb:1\n", A2_B1),
        ("a 2\nb 1\n", A2_B1),
        ("# nodes\n\na slots=2 # fast\n  b:1  \r\n", A2_B1),
        ("fe80::1\n", (HostSlots("fe80::1"),)),
        ("10.0.0.1:4\n", (HostSlots("10.0.0.1", 4),)),
        ("a slots=x\n", (HostSlots("a"),)),
        ("", ()),
    ],
)
def test_the_host_files_of_all_launchers_are_read(text: str, hosts: tuple[HostSlots, ...]) -> None:
    assert parse_hosts(text) == hosts


def test_a_line_that_would_become_a_flag_is_refused() -> None:
    with pytest.raises(BadHostfile, match="'-oProxyCommand=x' is not a host name"):
        parse_hosts("a\n-oProxyCommand=x\n")


def test_a_missing_file_is_an_error_that_names_the_ways_out() -> None:
    with pytest.raises(MissingHostfile) as raised:
        read_hosts(Path("/nowhere/hosts"))

    assert str(raised.value) == (
        "no hosts from '/nowhere/hosts': No such file or directory; "
        "set PBS_NODEFILE to the job's own file or pass --hostfile FILE"
    )


def test_an_empty_file_is_an_error_too() -> None:
    with pytest.raises(MissingHostfile, match="it is empty"):
        read_hosts(Path("hosts"), lambda _: "# none\n")


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (Style.OPEN_MPI, "a slots=2\nb slots=1\n"),
        (Style.MPICH, "a:2\nb:1\n"),
        (Style.REPEATED, "a\na\nb\n"),
        (Style.NAMES, "a\nb\n"),
    ],
)
def test_each_launcher_gets_its_own_form(style: Style, text: str) -> None:
    assert render_hosts(A2_B1, style) == text


@given(
    st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,5}", fullmatch=True), st.integers(1, 9)),
    st.sampled_from([Style.OPEN_MPI, Style.MPICH]),
)
def test_what_is_written_is_read_back(counts: dict[str, int], style: Style) -> None:
    hosts = tuple(HostSlots(host, slots) for host, slots in counts.items())

    assert parse_hosts(render_hosts(hosts, style)) == hosts


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("n1", "n1.example.org", True),
        ("N1.a", "n1.b", True),
        ("n1", "n10", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("fe80::1", "fe80::1", True),
    ],
)
def test_names_are_compared_by_their_short_form(one: str, other: str, same: bool) -> None:
    assert same_host(one, other) is same


def test_a_host_is_found_in_a_list() -> None:
    assert index_of("n2", ["n1.x", "n2.x"]) == 1
    assert index_of("n3", ["n1.x", "n2.x"]) is None
