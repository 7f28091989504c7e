import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.launch.hosts.host_lists import MOST_HOSTS, BadNodelist, expand, expand_counts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("n3, n1", "n3 n1"),
        ("n[1-3,07-09]", "n1 n2 n3 n07 n08 n09"),
        ("n[1-2],gpu-[01-02]-[3,5]", "n1 n2 gpu-01-3 gpu-01-5 gpu-02-3 gpu-02-5"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[099-101]", "n099 n100 n101"),
        ("n[001-2]", "n001 n002"),
        ("n[1,1]", "n1 n1"),
        ("a[1-2]b[3-4]c[5-6]", "a1b3c5 a1b3c6 a2b3c5 a2b3c6 a1b4c5 a1b4c6 a2b4c5 a2b4c6"),
        ("[0-1]-[2-3]", "0-2 0-3 1-2 1-3"),
        ("n[1-2]-ib,x", "n1-ib n2-ib x"),
        ("n[1-2].cluster.example", "n1.cluster.example n2.cluster.example"),
    ],
)
def test_a_list_is_expanded(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    ["n[1-2", "n[]", "n[2-1]", "n[a-b]", "n[1-2,]", "n]", "n[[1]]", "n[1--2]", "n[\u0661]"],
)
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadNodelist, match=r"cannot expand the host list .* write it like"):
        expand(text)


@pytest.mark.parametrize("text", ["n[1-99999999]", "n[0-999][0-999]", "n[1-9][1-9][1-9][1-9]" * 9])
def test_a_list_that_would_fill_the_memory_is_refused(text: str) -> None:
    with pytest.raises(BadNodelist, match=str(MOST_HOSTS)):
        expand(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [("", ()), ("4", (4,)), ("2(x3),1", (2, 2, 2, 1)), ("8,4(x2)", (8, 4, 4)), ("0", (0,))],
)
def test_counts_are_expanded(text: str, counts: tuple[int, ...]) -> None:
    assert expand_counts(text) == counts


@pytest.mark.parametrize("text", ["2(x)", "x3", "2(x3", "-1", "2(y3)"])
def test_counts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadNodelist, match="is not a count"):
        expand_counts(text)


@given(st.text(max_size=40))
def test_any_text_is_expanded_or_refused_in_words(text: str) -> None:
    with contextlib.suppress(BadNodelist):
        assert all(expand(text))


words = st.from_regex(r"[a-z][a-z._-]{0,3}", fullmatch=True)
numbers = st.integers(0, 200)
padded = st.tuples(numbers, st.integers(0, 4)).map(lambda pair: str(pair[0]).zfill(pair[1]))
ranges = st.tuples(padded, st.integers(0, 5)).map(
    lambda pair: f"{pair[0]}-{int(pair[0]) + pair[1]}"
)
brackets = st.lists(padded | ranges, min_size=1, max_size=3).map(lambda each: f"[{','.join(each)}]")
items = words | st.lists(st.tuples(words, brackets).map("".join), min_size=1, max_size=4).map(
    "".join
)
lists = st.lists(items, min_size=1, max_size=3).map(",".join)


@pytest.mark.process
@pytest.mark.needs("slurm")
def test_lists_are_expanded_as_slurm_does(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost\nNodeName=n1\n")
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(conf)}

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(lists)
    def compare(text: str) -> None:
        argv = ["scontrol", "show", "hostnames", text]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)

        assert expand(text) == tuple(done.stdout.split())

    compare()
