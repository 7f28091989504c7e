import pytest

from torchloom.components.dist import StructuredJArgument, StructuredNameArgument
from torchloom.errors import UserError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("foo/bar", ("foo", "bar")),
        ("foo/", ("foo", "baz")),
        ("/bar", ("default-experiment", "bar")),
        ("bar", ("default-experiment", "bar")),
        ("/", ("default-experiment", "baz")),
        ("a/b/c", ("a", "b/c")),
    ],
)
def test_a_name_holds_experiment_and_run(name: str, expected: tuple[str, str]) -> None:
    from_script = StructuredNameArgument.parse_from(name, script="dir/baz.py")
    from_module = StructuredNameArgument.parse_from(name, m="dir.baz")

    assert from_script == from_module == StructuredNameArgument(*expected)


@pytest.mark.parametrize(("m", "script"), [(None, None), ("a", "b"), ("", "")])
def test_a_name_needs_exactly_one_program(m: str | None, script: str | None) -> None:
    with pytest.raises(UserError, match="either a script or a module"):
        StructuredNameArgument.parse_from("x", m=m, script=script)


def test_processes_are_counted_from_the_hosts_gpus() -> None:
    assert str(StructuredJArgument.parse_from(h="gpu.large", j="2")) == "2x4"
    assert str(StructuredJArgument.parse_from(h="gpu.large", j="2x4")) == "2x4"


def test_another_count_than_the_gpus_is_warned_of_and_kept() -> None:
    with pytest.warns(UserWarning, match="starts 8 processes on each gpu.large, which has 4 GPUs"):
        made = StructuredJArgument.parse_from(h="gpu.large", j="2x8")

    assert str(made) == "2x8"


def test_a_host_without_gpus_needs_the_count() -> None:
    with pytest.raises(UserError, match="write for example -j 2x8"):
        StructuredJArgument.parse_from(h="cpu.small", j="2")


@pytest.mark.parametrize("j", ["", "x", "ax2", "1x2x3", "1x", "-1"])
def test_a_malformed_topology_is_told(j: str) -> None:
    with pytest.raises(UserError, match="is not NODESxPROCESSES"):
        StructuredJArgument.parse_from(h="gpu.small", j=j)
