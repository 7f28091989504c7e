"""Names that leave a process stay as they are, whatever classes and modules are called.

Messages, files, rows, answers and command lines hold these strings, and so do other versions. A
table here changes only with what it describes: together with a migration, or a new version.
"""

import ast
import asyncio
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange
from torchloom.bus.spool import incarnation
from torchloom.chaos import plan
from torchloom.chaos import record as chaos_record
from torchloom.cli.checkpoints import replay
from torchloom.client import login
from torchloom.doctor import findings
from torchloom.envs import archive, push, saved
from torchloom.launch import protocol
from torchloom.launch.assembly import LAUNCHERS, launchers
from torchloom.launch.environments import world
from torchloom.launch.host import identity
from torchloom.launch.keeper import fingerprint
from torchloom.launch.logs import display
from torchloom.launch.node_agent import gpus
from torchloom.launch.records import parcel, request
from torchloom.launch.records import record as launch_record
from torchloom.messages import membership, plane
from torchloom.rules import checkpoints, queue
from torchloom.rules.control import command
from torchloom.rules.membership import election, generation, seats
from torchloom.schedulers.batch import index
from torchloom.server.app import Front, build
from torchloom.server.plane_access import PlaneAccess
from torchloom.server.security.guard import reach
from torchloom.server.weaver_link import WeaverLink
from torchloom.specs import status
from torchloom.weaver.api.router import Router
from torchloom.weaver.store import DatabasePlace, backup, restoration, state_tables
from torchloom.weaver.store.reader import open_reading
from torchloom.weaver.store.series import curves

from ..harness.fake_agents import weaver_at
from .source import nodes

SRC = Path(__file__).resolve().parents[2] / "src"
PINNED: dict[str, list[str]] = json.loads(Path(__file__).with_name("pinned.json").read_text())
BASES = {"Answer", "BucketColumns", "Request", "Page"}  # of models: no route has one of them
NO_MODULE = {  # strings of that form which name something else
    "torchloom.admitted": "a message of our own in ASGI",
    "torchloom.frames": "an extension of our own in ASGI",
    "torchloom.named_resources": "a group of entry points",
    "torchloom.unproven": "a mark of our own in ASGI",
    "torchloom.words": "a key of a click context",
}
_MODULE = re.compile(r"\btorchloom(?:\.[a-z_]*[a-z0-9])+(?![\w*])")
_VARIABLE = re.compile(r"(?:LOOM|TORCHLOOM|torchLoom|PET)_[A-Z0-9_]+")

TAGS = {
    "Training": "head step why",
    "Broke": "head step is_collective why",
    "Arrived": "head applied pages why",
    "Restored": "head seconds taken",
    "NotRestored": "head why",
    "Finished": "head step",
    "Regroup": "head epoch",
    "Transfer": "head epoch store start given nodes",
    "Go": "head epoch start",
    "LetStand": "head epoch",
    "Release": "head epoch",
    "Lives": "head attempt lives room lost store stored",
    "Watch": "head epoch attempt is_live",
    "Fork": "head epoch attempt rank life node",
    "MakeStore": "head epoch attempt node",
    "EndLife": "head epoch attempt rank life reason",
    "Restart": "head epoch attempt reason cause",
    "Register": (
        "head role local_rank node pid started replica devices boundary knobs world_size page "
        "hang life attempt"
    ),
    "Metrics": "head names rows",
    "Event": "head kind step time facts",
    "Ready": "head command step ahead",
    "Refused": "head command why is_late",
    "Decided": "head command effective",
    "Applied": "head command step before after",
    "Goodbye": "head step",
    "Welcome": "head epoch changes",
    "Prepare": "head command kind payload at epoch",
    "Write": "head command effective epoch",
    "Outcome": "head command effective why epoch",
    "Kept": "head upto",
    "Hello": "head agent host boot pid epoch devices ranks cpus memory_mb",
    "Greeting": "head agent epoch window",
    "Beat": "head agent sent progress",
    "Batch": "head agent first records dropped follows",
    "Stored": "head epoch upto",
    "Kill": "head epoch signal reason",
    "DeviceEvent": "head device state source reason",
    "TakeStacks": "head epoch request lives",
    "Stacks": "head agent request looks is_silent",
    "ShowStacks": "head request",
    "OwnStacks": "head request threads",
    "Commit": "head epoch root step generation attempt manifest clears",
    "Committed": "head agent step generation attempt place code why",
    "Remove": "head epoch root step generation attempt",
    "Removed": "head agent step generation attempt code why",
}
PARTS = (  # arrays inside messages and spools, which have no tag
    (plane.Head, "version job generation rank incarnation role"),
    (plane.Knob, "name value type low high is_used"),
    (plane.Planned, "command step payload done"),
    (plane.Device, "uuid kind index memory"),
    (plane.Progress, "head step phase moved step_seconds"),
    (plane.Frame, "function file line text"),
    (plane.Thread, "name is_main frames"),
    (plane.ProcessSample, "at cpu state waits_in source threads note step phase still lasted"),
    (membership.Given, "target what step source"),
    (membership.ProcessReport, "rank life node code step why"),
    (incarnation.RecordOwner, "job rank incarnation pid started"),
)
SHAPES = (  # dataclasses whose fields are keys in files, rows, answers or between processes
    (identity.ProcessIdentity, "host boot pid started"),
    (
        launch_record.RunRecord,
        "id name session owner host log_dir created_at state reason error restarts generation "
        "started_at ended_at guard launcher lost_log_bytes parent ranks policy checkpoints "
        "saves deadline first_error shell step",
    ),
    (
        launch_record.RankRecord,
        "role replica rank local_rank state process attempt exit_code logs started_at "
        "ended_at warmth life generation step",
    ),
    (
        request.LaunchRequest,
        "app_id name session cwd log_dir roles grace notes nodes carrier files copies copied "
        "run_id join_limit last_call idle_timeout orphan_limit policy checkpoints saves "
        "deadline backoff attempt generation resume_from until own_end live_patience "
        "has_plane submitted",
    ),
    (
        request.RoleRequest,
        "name replicas ranks distributed max_retries policy min_replicas workspace cwd "
        "min_group uneven",
    ),
    (request.ReplicaRequest, "argv env ports"),
    (request.AgentCarrier, "launcher world flags cpu_bind env"),
    (
        world.World,
        "flavour hosts slots job_id rank local_rank node_rank world_size local_size "
        "node_count gpus_per_host address port on_every_host inside_step groups cores "
        "elsewhere notes",
    ),
    (
        protocol.ReplicaOrder,
        "role index attempt argv cwd ranks env ports grouped file_store copies generation life",
    ),
    (protocol.RankOrder, "local_rank logs variables copied"),
    (parcel.Parcel, "run_id session engine app cfg env cwd job_variable task_variable requeue"),
    (display.Display, "plain teed tee redirects only noise site"),
    (fingerprint.InterpreterProbe, "folders fingerprint missing"),
    (saved.SavedEnv, "variables flavour job_id hosts saved_at saved_on"),
    (index.IndexEntry, "job engine run_id name session folder created_at replicas submitted_at"),
    (login.Login, "url token fingerprint authority"),
    (command.Command, "id kind payload author reason at_step"),
    (command.CommandEntry, "command number status offer step why acks generation"),
    (command.Ack, "step before after"),
    (
        generation.GenerationRecord,
        "seats generation attempt phase mode lost plan checkpoint reason is_explained tries "
        "strikes reforms rejoins furthest furthest_then stuck inexact inexact_at",
    ),
    (seats.MemberSeat, "rank node life is_gone is_ending has_left is_new"),
    (election.GenerationPlan, "start origin moves inexact"),
    (checkpoints.Collected, "world_size parts failed lowest facts places"),
    (backup.BackupManifest, "made_at host torchloom schemas files format version"),
    (backup.BackupEntry, "name size sha256"),
    (queue.Need, "workers cpus gpus memory_mb"),
    (
        curves.Curve,
        "name rank role step_first step_last min max last time count nans has_replaced replaced",
    ),
    (findings.CheckFinding, "name state text remedy"),
    (gpus.GpuHealth, "temperature uncorrected remap_pending remap_failed slowed_by is_lost"),
    (status.ReplicaStatus, "id state role hostname structured_error_msg hostaddr"),
    (archive.PackedEnv, "path sha256 size files notes"),
    (push.Delivery, "host state source seconds error"),
    (push.Copy, "source target"),
    (restoration.Salvaged, "name why rows replaced by"),
    (replay.TrackDifference, "step rank tensor"),
    (chaos_record.Target, "what rank pid started node name"),
    (
        chaos_record.Strike,
        "n kind planned_at struck_at target lasts undone_at outcome why recovered_at step "
        "generation",
    ),
    (chaos_record.SeriesHead, "chaos job seed began faults plan"),
    (plan.Fault, "at kind rank lasts link mb by"),
)


def test_every_message_has_its_tag_and_its_fields_in_order() -> None:
    found = {kind.__struct_config__.tag: kind.__struct_fields__ for kind in _messages()}

    assert {tag: " ".join(names) for tag, names in found.items()} == TAGS
    assert plane.VERSION == 1


def test_every_message_states_its_tag() -> None:
    unstated = [node.name for node in _below("Message", "bus") if not _stated(node, "tag")]

    assert unstated == []


@pytest.mark.parametrize(("kind", "names"), PARTS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_part_of_a_message_has_its_fields_in_order(kind: Any, names: str) -> None:
    assert " ".join(kind.__struct_fields__) == names


@pytest.mark.parametrize(
    ("kind", "names"), SHAPES, ids=lambda value: getattr(value, "__name__", "")
)
def test_every_record_has_its_keys(kind: Any, names: str) -> None:
    keys = protocol.WIRE_NAMES if kind.__module__ == protocol.__name__ else {}

    assert " ".join(keys.get(field.name, field.name) for field in fields(kind)) == names


def test_every_row_has_the_columns_of_its_table() -> None:
    for kind, table in state_tables.TABLE_OF.items():
        assert {field.name for field in fields(kind)} == {column.name for column in table.columns}


def test_every_model_of_the_api_states_its_name() -> None:
    models = list(_below("Schema", "server"))
    unstated = {node.name for node in models if not _stated(node, "schema")}
    stated = [_stated(node, "schema") for node in models if node.name not in unstated]

    assert unstated == BASES
    assert len(stated) == len(set(stated)) > 60


@pytest.mark.process
def test_every_operation_of_the_api_keeps_its_id(tmp_path: Path) -> None:
    access = PlaneAccess(
        WeaverLink(tmp_path / "none"), open_reading(DatabasePlace(tmp_path)), tmp_path
    )
    paths = build(access, Front(reach(0))).openapi()["paths"].values()

    found = {operation["operationId"] for item in paths for operation in item.values()}
    assert set(PINNED["operations"]) - found == set()


def test_no_code_kind_or_variable_is_lost() -> None:
    assert set(PINNED["codes"]) - _codes() == set()
    assert set(PINNED["kinds"]) - _kinds() == set()
    assert set(PINNED["variables"]) - _variables() == set()


def test_every_question_finds_its_answer(tmp_path: Path) -> None:
    async def unanswered() -> list[str]:
        async with weaver_at(tmp_path, Exchange()) as weaver:
            answering = Router(weaver)
            names = (*PINNED["questions"], "nothing")
            said = [await answering.answer({"version": 1, "ask": name}) for name in names]
        pairs = zip(names, said, strict=True)
        return [name for name, each in pairs if "no question" in each.get("error", "")]

    assert asyncio.run(unanswered()) == ["nothing"]


def test_every_module_that_a_string_names_is_there() -> None:
    lost = {f"{path.relative_to(SRC)}: {name}" for path, name in _named() if not _is_there(name)}

    assert lost == set()
    assert [_is_there(f"torchloom.worker.process.zygote{end}") for end in ("", "s")] == [
        True,
        False,
    ]


def test_every_launcher_has_its_function() -> None:
    assert [name for name in LAUNCHERS.values() if not hasattr(launchers, name)] == []


def _messages(kind: type[plane.Message] = plane.Message) -> Iterator[Any]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("torchloom."):
            yield each
        yield from _messages(each)


@cache
def _paths() -> tuple[Path, ...]:
    return tuple(sorted(SRC.rglob("*.py")))


def _nodes() -> Iterator[ast.AST]:
    for path in _paths():
        yield from nodes(path)


def _below(base: str, room: str) -> Iterator[ast.ClassDef]:
    """Yield the classes of a room that are of this base, through others of the room too."""
    found = [path for path in _paths() if room in path.relative_to(SRC).parts]
    classes = [each for path in found for each in nodes(path) if isinstance(each, ast.ClassDef)]
    bases = {each.name: {ast.unparse(base) for base in each.bases} for each in classes}
    known = {base}
    while more := {name for name, those in bases.items() if those & known} - known:
        known |= more
    yield from (each for each in classes if bases[each.name] & known)


def _stated(node: ast.ClassDef, keyword: str) -> str:
    found = (each.value for each in node.keywords if each.arg == keyword)
    return next((str(each.value) for each in found if isinstance(each, ast.Constant)), "")


def _codes() -> set[str]:
    """Return what machines match of errors: a constant of each class."""
    return {
        node.value.value
        for node in _nodes()
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "code"
        if isinstance(node.value.value, str)
    }


def _kinds() -> set[str]:
    """Return the kinds of events: the first argument of what writes one."""
    return {
        node.args[0].value
        for node in _nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
        if node.func.attr in ("note", "event", "_event") and isinstance(node.args[0], ast.Constant)
        if isinstance(node.args[0].value, str)
    }


def _variables() -> set[str]:
    return {text for _, text in _texts() if _VARIABLE.fullmatch(text)}


def _texts() -> Iterator[tuple[Path, str]]:
    for path in _paths():
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value


def _named() -> Iterator[tuple[Path, str]]:
    """Yield the modules that strings, docstrings and scripts name."""
    others = (each for each in SRC.rglob("*") if each.is_file() and each.suffix != ".py")
    scripts = ((path, path.read_text()) for path in others if "__pycache__" not in path.parts)
    for path, text in (*_texts(), *scripts):
        for name in _MODULE.findall(text):
            if name not in NO_MODULE:
                yield path, name


def _is_there(name: str) -> bool:
    """Tell whether it is a module, or something inside of one."""
    parent, _, last = name.rpartition(".")
    try:
        if importlib.util.find_spec(name) is not None:
            return True
        found = importlib.util.find_spec(parent)
    except ModuleNotFoundError:
        return False
    text = Path(found.origin).read_text() if found and found.origin else ""
    return re.search(rf"^(?:def|class) {last}\b|\b{last}\b *=", text, re.M) is not None
