"""Run options: declared, read from text, resolved."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.errors import UserError
from torchloom.specs import InvalidRunConfigException, runopts

WORD = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


def slurm() -> runopts:
    opts = runopts()
    opts.add("partition", type_=str, help="where to run", required=True)
    opts.add("nodes", type_=int, help="how many", default=1)
    opts.add("mail_user", type_=str, help="whom to tell")
    opts.add("tags", type_=list[str], help="labels", default=["a"])
    return opts


def test_options_are_iterated_and_merged_in_order() -> None:
    other = runopts()
    other.add("nodes", type_=int, help="more", default=4)
    other.add("qos", type_=str, help="class")

    merged = slurm() | other

    assert [name for name, _ in merged] == ["partition", "nodes", "mail_user", "tags", "qos"]
    assert (len(merged), len(slurm())) == (5, 4)
    assert (nodes := merged.get("nodes")) is not None
    assert (nodes.default, nodes.help) == (4, "more")


def test_a_required_option_with_a_default_is_a_mistake_of_its_author() -> None:
    with pytest.raises(ValueError, match="'x' is required, so its default is never used"):
        runopts().add("x", type_=str, help="", default="a", required=True)


def test_a_default_of_another_type_is_a_mistake_of_its_author() -> None:
    with pytest.raises(TypeError, match="option 'x' is int, its default 'a' is str"):
        runopts().add("x", type_=int, help="", default="a")


def test_camel_case_finds_the_option() -> None:
    opts = slurm()

    assert opts.get("mailUser") is opts.get("mail_user")
    assert opts.get("nothing") is None
    assert opts.cfg_from_str("mailUser=me") == {"mail_user": "me"}


def test_resolving_fills_defaults_and_keeps_an_explicit_none() -> None:
    assert slurm().resolve({"partition": "gpu", "nodes": None, "other": "x"}) == {
        "partition": "gpu",
        "nodes": None,
        "other": "x",
        "mail_user": None,
        "tags": ["a"],
    }


def test_a_missing_option_is_named_with_its_meaning() -> None:
    with pytest.raises(InvalidRunConfigException) as caught:
        slurm().resolve({})

    assert caught.value.cfg_key == "partition"
    assert str(caught.value) == (
        "option 'partition' is required (where to run): give partition=PARTITION. Given: <EMPTY>"
    )


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRunConfigException) as caught:
        slurm().resolve({"partition": "gpu", "nodes": "two"})

    assert str(caught.value) == (
        "option 'nodes' must be int, not str 'two'. Given: {'partition': 'gpu', 'nodes': 'two'}"
    )


def test_an_unknown_option_is_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cfg = slurm().cfg_from_str("partition=gpu,nods=2")

    assert cfg == {"partition": "gpu"}
    assert caplog.messages == [
        "ignored: no option 'nods'; did you mean 'nodes'?; known: mail_user, nodes, partition, tags"
    ]


def test_an_unknown_option_can_be_refused() -> None:
    refused = "no option 'nods'; did you mean 'nodes'?"

    with pytest.raises(InvalidRunConfigException, match=refused):
        slurm().cfg_from_str("nods=2", ignore_unknown=False)
    with pytest.raises(InvalidRunConfigException, match=refused):
        slurm().cfg_from_json_repr('{"nods": 2}', ignore_unknown=False)
    with pytest.raises(InvalidRunConfigException, match=refused):
        slurm().resolve({"partition": "x", "nods": "2"}, ignore_unknown=False)


def test_text_that_is_no_number_is_a_value_error_in_words() -> None:
    with pytest.raises(ValueError, match="option 'nodes' must be int: invalid literal") as caught:
        slurm().cfg_from_str("nodes=two")

    assert isinstance(caught.value, InvalidRunConfigException)


def test_two_spellings_that_disagree_are_refused() -> None:
    with pytest.raises(InvalidRunConfigException, match="'mail_user' is given twice"):
        slurm().cfg_from_str("mail_user=a,mailUser=b")


@pytest.mark.parametrize("text", ["[1]", "3", "{", '{"tags": 3}', "null"])
def test_json_that_holds_no_options_is_refused(text: str) -> None:
    with pytest.raises(InvalidRunConfigException):
        slurm().cfg_from_json_repr(text)


@given(st.lists(WORD, min_size=1), WORD, st.sampled_from(",;"))
def test_a_list_ends_at_the_last_delimiter_before_the_next_key(
    items: list[str], partition: str, delimiter: str
) -> None:
    text = f"tags={delimiter.join(items)}{delimiter}partition={partition}"

    assert slurm().cfg_from_str(text) == {"tags": items, "partition": partition}


@given(st.text())
def test_any_text_gives_options_or_one_clear_error(text: str) -> None:
    message = ""
    try:
        slurm().cfg_from_str(text)
    except UserError as error:
        message = str(error)

    assert len(message) < 1000


def test_a_family_takes_every_name_that_begins_as_it_does() -> None:
    opts = slurm()
    opts.add("sbatch.*", type_=str, help="any option of sbatch")

    found = opts.cfg_from_str("partition=gpu,sbatch.gres=gpu:2", ignore_unknown=False)

    assert found == {"partition": "gpu", "sbatch.gres": "gpu:2"}
    assert opts.resolve(found)["sbatch.gres"] == "gpu:2"
    assert "sbatch.*" not in opts.resolve(found)
    with pytest.raises(InvalidRunConfigException, match=r"no option 'srun\.x'"):
        opts.cfg_from_str("srun.x=1", ignore_unknown=False)
    with pytest.raises(InvalidRunConfigException, match=r"'sbatch\.gres' must be str"):
        opts.resolve({"partition": "gpu", "sbatch.gres": 2})
