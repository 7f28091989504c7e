"""The messages of a launch: each survives the wire, and nothing else gets in."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.launch import protocol
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.protocol import (
    TO_JOB_AGENT,
    TO_KEEPER,
    TO_SUPERVISOR,
    Kinds,
    LaunchMessage,
    RankProcessReport,
    Unknown,
    decode,
)
from torchloom.launch.wire import BadFrame

ALL_KINDS = [each for each in vars(protocol).values() if isinstance(each, Kinds)]
EVERY = [(kinds, made) for kinds in ALL_KINDS for made in kinds.classes.values()]
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)

# What processes of earlier versions send and take, word for word.
PROCESS = '{"host": "n1", "boot": "b", "pid": 7, "started": "12"}'
NOTE = (
    '"role": "a", "index": 0, "local_rank": 1, "attempt": 2, "life": 3, "generation": 4, '
    '"logs": "a/0/1", "directory": "/logs", '
    '"beside": {"rank": "1", "copies": "/c/1", "copied": 3}, "warm": "cold: why"'
)
ENDED = f'{{{NOTE}, "code": 1, "process": {PROCESS}, "error": ["text", 1.5], "step": 9}}'
RUNNING = f'{{{NOTE}, "code": null, "process": null}}'
ORDER = (
    '{"role": "a", "index": 0, "attempt": 2, "argv": ["x", "y"], "cwd": "/", '
    '"ranks": [{"local_rank": 0, "logs": "a/0/0", "variables": {"RANK": "0"}, "copied": 0}], '
    '"env": {"A": "b"}, "ports": {"web": 80}, "grouped": true, "file_store": false, '
    '"copies": "", "generation": 5, "life": 3}'
)
CHILD = (
    f'"id": 4, "note": {{{NOTE}}}, "pid": 7, "started": "12", "code": null, "kept": 2, "cold": ""'
)
KEEPER = (
    '"job": "j", "node": "n", "address": "/k", "orphan_limit": 5.0, "argv": ["x"], '
    '"env": {"A": "b"}, "cwd": "/"'
)
SENT = {
    protocol.TO_JOB_AGENT: [
        '{"do": "prove", "challenge": "c"}',
        '{"do": "tell", "app_id": "a-1"}',
        '{"do": "job", "log_dir": "/l", "marker": "", "quiet_limit": 0, "orphan_limit": 60.0, '
        '"proof": "p", "uplink": "/u"}',
        f'{{"do": "start", "order": {ORDER}}}',
        f'{{"do": "store", "order": {ORDER}, "address": "10.0.0.1"}}',
        f'{{"do": "fork", "order": {ORDER}}}',
        f'{{"do": "meet", "order": {ORDER}, "address": ""}}',
        '{"do": "end_life", "key": ["a", 0], "life": [1, 2, 3]}',
        '{"do": "stop", "key": ["a", 0], "signum": 15, "grace": 10.0}',
        '{"do": "signal", "signum": 10}',
        '{"do": "end", "grace": 10.0, "code": 1}',
    ],
    protocol.TO_SUPERVISOR: [
        f'{{"say": "hello", "host": "n1", "challenge": "c", "process": {PROCESS}, '
        f'"seat": "", "place": null, "ranks": [{ENDED}, {RUNNING}]}}',
        '{"say": "proof", "proof": "p"}',
        '{"say": "ask"}',
        '{"say": "plane", "node": "n2", "key": "U", "challenge": "c"}',
        f'{{"say": "started", "ranks": [{RUNNING}]}}',
        f'{{"say": "started", "role": "a", "index": 0, "ranks": [{RUNNING}]}}',
        '{"say": "start_failed", "role": "a", "index": 0, "cause": "c", "bad_node": false}',
        f'{{{NOTE}, "say": "not_forked", "cause": "c"}}',
        f'{{"say": "exited", "ranks": [{ENDED}]}}',
        '{"say": "store", "role": "a", "attempt": 1, "port": 80, "hosted": true}',
        '{"say": "met", "attempt": 1, "generation": 2, "store": "file:///x"}',
        '{"say": "quiet", "seconds": 1.5}',
        '{"say": "leaving"}',
        '{"say": "output", "logs": "a/0/0", "stream": "stdout", "data": "\\u00ff\\n"}',
        '{"say": "output_end", "logs": "a/0/0"}',
        '{"say": "unwatched", "why": "w"}',
        '{"say": "cleared", "lost": 0}',
    ],
    protocol.TO_KEEPER: [
        f'{{"do": "start", "id": 4, "argv": ["x"], "env": {{"A": "b"}}, "cwd": "/", "given": 3, '
        f'"note": {{{NOTE}}}, "terminal": false, "warm": true}}',
        '{"do": "signal", "id": 4, "signum": 9}',
        '{"do": "bury", "id": 4}',
        '{"do": "sweep", "signum": 0}',
        '{"do": "end"}',
    ],
    protocol.FROM_KEEPER: [
        f'{{"say": "hello", "pid": 5, "children": [{{{CHILD}}}], "warm": false}}',
        f'{{"say": "started", {CHILD}}}',
        '{"say": "failed", "id": 4, "errno": 2, "what": "x"}',
        '{"say": "exited", "children": [{"id": 4, "code": -9}]}',
        '{"say": "left", "count": 3}',
    ],
    protocol.TO_ZYGOTE: [
        f'{{"do": "keep", {KEEPER}, "alert": null}}',
        f'{{"do": "keep", {KEEPER}, "alert": "1-2"}}',
        '{"do": "look", "alert": "1-2"}',
        '{"do": "leave"}',
        '{"do": "leave", "if_idle": true}',
    ],
    protocol.FROM_ZYGOTE: [
        '{"say": "busy", "jobs": ["j"]}',
        '{"say": "cold", "why": "w"}',
        '{"say": "warm", "pid": 5}',
    ],
    protocol.TO_NODE_AGENT: [
        '{"do": "prove", "challenge": "c"}',
        '{"do": "go", "proof": "p", "token": "t", "nats": "nats://n", "authority": ""}',
        '{"do": "pass", "proof": "p", "token": "t"}',
        '{"do": "refuse", "proof": "p", "why": "w"}',
    ],
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return what a field of this type may hold."""
    if dataclasses.is_dataclass(kind):
        made: Any = kind
        fields = {each.name: values_of(each.type) for each in dataclasses.fields(made)}
        return st.builds(made, **fields)
    plain = {int: st.integers(), str: TEXT, bool: st.booleans(), Any: JSON}
    if kind in plain:
        return plain[kind]
    if kind is float:
        return st.floats(allow_nan=False) | st.integers()
    arguments = get_args(kind)
    if get_origin(kind) is Mapping:
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=3)
    if get_origin(kind) is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*map(values_of, arguments))
    return st.none() | values_of(arguments[0])


def wired(message: LaunchMessage) -> dict[str, Any]:
    """Return what arrives of a message."""
    found: dict[str, Any] = json.loads(json.dumps(message.to_wire()))
    return found


def test_every_class_of_a_message_is_received_by_a_process() -> None:
    classes = [each for each in vars(protocol).values() if isinstance(each, type)]
    messages = {each for each in classes if issubclass(each, LaunchMessage)}

    assert {made for _, made in EVERY} == messages - {LaunchMessage, Unknown}
    assert set(ALL_KINDS) == set(SENT)


@pytest.mark.parametrize(("kinds", "made"), EVERY)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_message_survives_the_wire(
    kinds: Kinds, made: type[LaunchMessage], data: st.DataObject
) -> None:
    message = data.draw(values_of(made))

    assert decode(wired(message), kinds) == message


@pytest.mark.parametrize(
    ("kinds", "text"), [(kinds, text) for kinds, texts in SENT.items() for text in texts]
)
def test_messages_are_those_of_earlier_versions_to_the_letter(kinds: Kinds, text: str) -> None:
    message = decode(json.loads(text), kinds)

    assert not isinstance(message, Unknown)
    assert wired(message) == json.loads(text)


def test_all_kinds_of_messages_are_held_against_earlier_versions() -> None:
    for kinds, texts in SENT.items():
        assert {type(decode(json.loads(text), kinds)) for text in texts} == {
            *kinds.classes.values()
        }


@pytest.mark.parametrize(("kinds", "made"), EVERY)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_a_field_is_replaced_by_a_message_fits_or_is_refused(
    kinds: Kinds, made: type[LaunchMessage], data: st.DataObject
) -> None:
    sent = wired(data.draw(values_of(made)))
    at: Any = sent
    while True:  # anywhere in it
        name = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not at[name] or not isinstance(at[name], dict | list) or data.draw(st.booleans()):
            break
        at = at[name]
    at[name] = data.draw(JSON)

    try:
        message = decode(sent, kinds)
    except BadFrame:
        return
    assert isinstance(message, Unknown) or fits(message, made)


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value is of a type, all through; written without what decodes."""
    if kind is Any:
        return True
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        return type(value) is kind and all(fits(getattr(value, f.name), f.type) for f in fields)
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Mapping:
        return isinstance(value, dict) and all(fits(one, arguments[1]) for one in value.values())
    if origin is tuple and arguments[-1] is Ellipsis:
        return isinstance(value, tuple) and all(fits(one, arguments[0]) for one in value)
    if origin is tuple:
        pairs = zip(value, arguments, strict=True)
        return isinstance(value, tuple) and all(fits(*pair) for pair in pairs)
    if arguments:
        return value is None or fits(value, arguments[0])
    return type(value) is kind or (kind is float and type(value) is int)


@given(data=st.dictionaries(st.sampled_from(["do", "say", "id", "ranks"]) | TEXT, JSON, max_size=5))
def test_any_json_object_is_a_message_unknown_or_refused(data: dict[str, Any]) -> None:
    for kinds in ALL_KINDS:
        with contextlib.suppress(BadFrame):
            message = decode(data, kinds)
            assert fits(message, type(message))


@pytest.mark.parametrize(("kinds", "made"), EVERY)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_message_without_a_field_that_has_no_default_is_refused(
    kinds: Kinds, made: type[LaunchMessage], data: st.DataObject
) -> None:
    fields: Any = dataclasses.fields(made)  # type: ignore[arg-type]
    sent = wired(data.draw(values_of(made)))
    needed = [
        protocol.WIRE_NAMES.get(each.name, each.name)
        for each in fields
        if each.default is each.default_factory is dataclasses.MISSING
    ]
    if not needed:
        return
    del sent[data.draw(st.sampled_from(needed))]

    with pytest.raises(BadFrame):
        decode(sent, kinds)


@pytest.mark.parametrize(
    ("kinds", "sent"),
    [
        (TO_KEEPER, {"do": "bury", "id": True}),
        (TO_KEEPER, {"do": "bury", "id": 1.0}),
        (TO_KEEPER, {"do": "bury", "id": None}),
        (TO_KEEPER, {"do": "bury"}),
        (TO_KEEPER, {"do": ["bury"], "id": 1}),
        (TO_KEEPER, {"say": "bury", "id": 1}),
        (TO_JOB_AGENT, {"do": "end_life", "key": ["a", 0], "life": [1, 2]}),
        (TO_JOB_AGENT, {"do": "end_life", "key": {"a": 0}, "life": [1, 2, 3]}),
        (TO_JOB_AGENT, {"do": "end", "grace": "10", "code": 0}),
        (TO_SUPERVISOR, {"say": "exited", "ranks": {}}),
        (TO_SUPERVISOR, {"say": "exited", "ranks": [["role", "a"]]}),
        (TO_SUPERVISOR, {"say": "exited", "ranks": [{"role": "a", "index": 0}]}),
    ],
)
def test_a_message_of_a_wrong_shape_is_refused(kinds: Kinds, sent: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        decode(sent, kinds)


def test_fields_and_kinds_of_a_newer_version_are_ignored() -> None:
    known = decode({"do": "bury", "id": 1, "why": "grief"}, TO_KEEPER)
    unknown = decode({"do": "sing", "id": True}, TO_KEEPER)

    assert (known, unknown) == (protocol.BuryChild(1), Unknown("sing"))


def test_a_rank_that_was_never_started_is_reported_in_a_few_words() -> None:
    """An agent of an earlier version leaves out all that it does not know."""
    rank = {"role": "a", "index": 0, "local_rank": 1, "attempt": 2, "life": 1, "code": -15}

    found = decode({"say": "exited", "ranks": [rank]}, TO_SUPERVISOR)

    assert found == protocol.RanksExited((RankProcessReport("a", 0, 1, 2, 1, code=-15),))
    assert isinstance(found, protocol.RanksExited)
    assert not {"error", "step"} & set(wired(found)["ranks"][0])


def test_a_process_is_named_by_all_that_tells_it_from_another() -> None:
    process = ProcessIdentity("n1", "b", 7, "12")

    assert protocol.read(ProcessIdentity, protocol.encode(process)) == process
