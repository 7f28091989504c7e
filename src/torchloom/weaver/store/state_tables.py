"""The tables of `state`: who is there, what was asked, what was decided."""

import sqlalchemy as sa

from torchloom.weaver.store import rows
from torchloom.weaver.store.engine import JsonText, Number, TextColumn

METADATA = sa.MetaData()


def _text(name: str, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, TextColumn, nullable=False, primary_key=primary_key)


def _int(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, Number, nullable=nullable)


def _time(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, JsonText, nullable=False)


epochs = sa.Table(
    "epochs",
    METADATA,
    sa.Column("epoch", Number, primary_key=True, autoincrement=False),
    _text("host"),
    _int("pid"),
    _time("started_at"),
)
jobs = sa.Table(
    "jobs",
    METADATA,
    _text("id", primary_key=True),
    *map(_text, ("name", "owner", "scheduler", "handle", "state", "reason", "run_id")),
    _int("attempt"),
    _int("generation"),
    _time("created_at"),
    _time("started_at", nullable=True),
    _time("ended_at", nullable=True),
    _json("facts"),
    _int("step", nullable=True),
    _text("account"),
    sa.Index("jobs_by_time", "created_at", "id"),
)
runs = sa.Table(
    "runs",
    METADATA,
    _text("id", primary_key=True),
    _text("job"),
    _text("name"),
    _json("config"),
    _time("created_at"),
)
agents = sa.Table(
    "agents",
    METADATA,
    _text("id", primary_key=True),
    _text("host"),
    _text("boot"),
    _int("pid"),
    _text("state"),
    _text("reason"),
    _time("first_seen"),
    _time("greeted_at"),
)
devices = sa.Table(
    "devices",
    METADATA,
    _text("uuid", primary_key=True),
    _text("node"),
    _text("kind"),
    _int("index"),
    _int("memory"),
    _text("state"),
    _text("source"),
    _text("reason"),
    _time("changed_at"),
)
ranks = sa.Table(
    "ranks",
    METADATA,
    _text("job", primary_key=True),
    _text("role", primary_key=True),
    sa.Column("rank", Number, primary_key=True, autoincrement=False),
    _int("generation"),
    _text("incarnation"),
    _int("world_size"),
    _int("local_rank"),
    _text("node"),
    _text("agent"),
    _int("pid"),
    _int("started"),
    _text("replica"),
    _json("devices"),
    _text("boundary"),
    _json("knobs"),
    _text("state"),
    _text("reason"),
    _time("registered_at"),
    _time("ended_at", nullable=True),
    _int("life"),
    _int("attempt"),
)
drmap = sa.Table(
    "drmap",
    METADATA,
    _text("device", primary_key=True),
    _text("process", primary_key=True),
    _int("version"),
)
facts = sa.Table("facts", METADATA, _text("name", primary_key=True), _json("value"))
commands = sa.Table(
    "commands",
    METADATA,
    _text("id", primary_key=True),
    _int("number"),
    _text("job"),
    _text("kind"),
    _json("payload"),
    _int("at", nullable=True),
    _text("author"),
    _text("reason"),
    _time("asked_at"),
    _text("state"),
    _int("generation"),
    _int("offer"),
    _int("effective", nullable=True),
    _json("before"),
    _json("after"),
    _text("outcome"),
    _time("ended_at", nullable=True),
    sa.Index("commands_by_job", "job", "number", unique=True),
)
command_acks = sa.Table(
    "command_acks",
    METADATA,
    _text("command", primary_key=True),
    sa.Column("generation", Number, primary_key=True, autoincrement=False),
    sa.Column("rank", Number, primary_key=True, autoincrement=False),
    _text("incarnation"),
    _text("state"),
    _int("step", nullable=True),
    _int("ahead", nullable=True),
    _text("why"),
    _json("before"),
    _json("after"),
    _time("at"),
)
guards = sa.Table(
    "guards",
    METADATA,
    _text("command", primary_key=True),
    _text("job"),
    _text("words"),
    _int("span"),
    _time("base", nullable=True),
    _text("state"),
    _text("why"),
)
events = sa.Table(
    "events",
    METADATA,
    sa.Column("seq", Number, primary_key=True),
    _time("time"),
    _text("job"),
    _text("kind"),
    _int("rank"),
    _int("step", nullable=True),
    _text("author"),
    _text("reason"),
    _json("facts"),
    sa.Index("events_by_job", "job", "seq"),
)
submissions = sa.Table(
    "submissions",
    METADATA,
    _text("job", primary_key=True),
    _int("number"),
    _text("owner"),
    _int("priority"),
    _json("spec"),
    *map(_text, ("key", "cwd", "python", "author")),
    _time("submitted_at"),
    sa.Index("submissions_by_number", "number", unique=True),
    sa.Index("submissions_by_key", "owner", "key"),
)
placements = sa.Table(
    "placements",
    METADATA,
    _text("job", primary_key=True),
    _text("node", primary_key=True),
    _int("workers"),
    _int("cpus"),
    _int("memory_mb"),
    _json("gpus"),
)
quotas = sa.Table("quotas", METADATA, _text("owner", primary_key=True), _int("workers"))
checkpoints = sa.Table(
    "checkpoints",
    METADATA,
    _text("job", primary_key=True),
    *(
        sa.Column(name, Number, primary_key=True, autoincrement=False)
        for name in ("step", "generation", "attempt")
    ),
    _text("state"),
    _int("world_size"),
    _int("bytes"),
    _text("place"),
    _json("metrics"),
    *map(_text, ("trigger", "reason", "author", "root")),
    _time("created_at"),
    _time("committed_at", nullable=True),
    _time("changed_at"),
    _json("shards"),
    _text("manifest"),
    sa.Index("checkpoints_by_state", "state"),
)
regroupings = sa.Table(
    "regroupings",
    METADATA,
    _text("job", primary_key=True),
    _int("attempt"),
    _text("state"),
    _json("record"),
    _text("role"),
    _text("store"),
    _int("stored"),
    _time("since", nullable=True),
    _text("cause"),
)
users = sa.Table(
    "users",
    METADATA,
    _text("name", primary_key=True),
    _text("role"),
    sa.Column("disabled", sa.Boolean, nullable=False),
    _time("created_at"),
    _text("run_as"),
)
tokens = sa.Table(
    "tokens",
    METADATA,
    _text("id", primary_key=True),
    *map(_text, ("user", "label", "hash", "kind")),
    _time("created_at"),
    _time("expires_at", nullable=True),
    _time("revoked_at", nullable=True),
    _text("key"),
    _text("proof"),
    sa.Index("tokens_by_hash", "hash", unique=True),
)
links = sa.Table(
    "links",
    METADATA,
    _text("hash", primary_key=True),
    _text("user"),
    _time("expires_at"),
    _time("used_at", nullable=True),
    _text("key"),
)

TABLE_OF: dict[type[rows.StoredRow], sa.Table] = {
    rows.Epoch: epochs,
    rows.JobRow: jobs,
    rows.RunRow: runs,
    rows.AgentRow: agents,
    rows.DeviceRow: devices,
    rows.RankProcessRow: ranks,
    rows.MapEntry: drmap,
    rows.Fact: facts,
    rows.CommandRow: commands,
    rows.CommandAck: command_acks,
    rows.GuardRow: guards,
    rows.EventRow: events,
    rows.SubmissionRow: submissions,
    rows.Placement: placements,
    rows.QuotaRow: quotas,
    rows.CheckpointRow: checkpoints,
    rows.LiveRecoveryRow: regroupings,
    rows.UserRow: users,
    rows.TokenRow: tokens,
    rows.LinkRow: links,
}
