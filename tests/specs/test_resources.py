"""Resource, its null value and typed capabilities."""

import pytest

from torchloom.specs import NULL_RESOURCE, CapabilityKey, Resource, resource_tags


def test_the_smallest_resource_needs_only_what_differs() -> None:
    assert Resource(cpu=1, memMB=128) == Resource(1, 0, 128)
    assert Resource() == Resource(cpu=1, gpu=0, memMB=128)
    assert Resource(cpu=-1, gpu=-1, memMB=-1) == NULL_RESOURCE


def test_a_copy_shares_nothing_with_its_original() -> None:
    original = Resource(1, 2, 3, {"a": 1}, {"efa": 1}, {"t": 1})

    copied = Resource.copy(original, b=2)
    copied.devices["efa"] = 9
    copied.tags["t"] = 9

    assert copied == Resource(1, 2, 3, {"a": 1, "b": 2}, {"efa": 9}, {"t": 9})
    assert original == Resource(1, 2, 3, {"a": 1}, {"efa": 1}, {"t": 1})


def test_tags_tell_the_name_and_whether_it_is_a_slice() -> None:
    plain = Resource()
    tagged = Resource(
        tags={resource_tags.RESOURCE_NAME: "gpu_4", resource_tags.IS_FRACTIONAL: True}
    )

    assert (plain.get_resource_name(), plain.is_fractional()) == (None, False)
    assert (tagged.get_resource_name(), tagged.is_fractional()) == ("gpu_4", True)


def test_a_capability_key_reads_only_values_of_its_type() -> None:
    key = CapabilityKey("aws", "gbps", int)
    resource = Resource()

    absent = key.get(resource, default=7)
    key.set(resource, 400)

    assert (absent, key.get(resource), resource.capabilities) == (7, 400, {"aws.gbps": 400})


def test_a_bool_is_no_int_capability() -> None:
    with pytest.raises(TypeError, match=r"capability 'aws\.gbps': expected int, got bool True"):
        CapabilityKey("aws", "gbps", int).get(Resource(capabilities={"aws.gbps": True}))
