"""One message of every kind, filled in."""

from typing import get_args

from torchloom.messages import membership as r
from torchloom.messages import plane as m

HEAD = m.Head(m.VERSION, "gpt-1a2b", 3, 1, "9f0c")
REGISTER = m.Register(
    HEAD,
    role="trainer",
    local_rank=1,
    node="n1",
    pid=4711,
    started=123456,
    replica="trainer/1",
    devices=("CPU-1",),
    boundary="attached",
    knobs=(m.Knob("lr", 0.1, "float", 0.0, 1.0),),
    page="/dev/shm/loom-gpt-1a2b-0/rank1",
)
LOOK = m.ProcessSample(
    at=1.5,
    cpu=0.25,
    state="S",
    waits_in="hrtimer_nanosleep",
    source="py-spy",
    threads=(m.Thread("MainThread", True, (m.Frame("train", "train.py", 20, "time.sleep(9)"),)),),
    note="",
    step=20,
    phase=1,
    still=9.5,
    lasted=0.25,
)
FROM_RANK: tuple[m.Message, ...] = (
    REGISTER,
    m.Metrics(HEAD, ("loss", "lr"), ((7, 1.5, 0.25, 0.1), (8, 1.6, None, 0.1))),
    m.Event(HEAD, "nan", 7, 1.5, {"name": "loss", "deep": [1, {"a": None}]}),
    m.Ready(HEAD, "c1", 7, 2),
    m.RankRefusal(HEAD, "c1", "no such knob"),
    m.Decided(HEAD, "c1", None),
    m.Applied(HEAD, "c1", 9, 0.1, 0.03),
    m.Goodbye(HEAD, 10),
)
TALK: tuple[m.Message, ...] = (
    r.Training(HEAD, 40, "it makes groups of its own"),
    r.Broke(HEAD, 41, True, "Connection closed by peer"),
    r.Arrived(HEAD, 41, (39, 40, 41)),
    r.Restored(HEAD, 0.25, 4096),
    r.NotRestored(HEAD, "the hash differs"),
    r.Finished(HEAD, 100),
    r.ProcessReports(
        HEAD,
        1,
        (r.ProcessReport(2, 1, "n1", -9, 41), r.ProcessReport(2, 2, "n1")),
        {"n1": 4},
        ("n2",),
    ),
)
REGROUPING: tuple[m.Message, ...] = (
    r.JoinGeneration(HEAD, 4),
    r.Transfer(HEAD, 4, "tcp://n1:29500", 41, (r.Given(2, "state", 41, 0),), ("n1", "n1", "n2")),
    r.Go(HEAD, 4, 41),
    r.LetStand(HEAD, 4),
    r.Release(HEAD, 4),
)
TO_LAUNCH: tuple[m.Message, ...] = (
    r.Watch(HEAD, 4, 1, True),
    r.Fork(HEAD, 4, 1, 2, 2, "n1"),
    r.MakeStore(HEAD, 4, 1, "n1"),
    r.EndProcess(HEAD, 4, 1, 2, 1, "hang_rank_2"),
    r.Restart(HEAD, 4, 1, "exit_signal_9_rank_2", "live_wait"),
)
TO_RANK: tuple[m.Message, ...] = (
    *REGROUPING,
    m.Welcome(HEAD, 4, (m.Planned("c1/1", 412, {"name": "lr", "value": 0.03}, True),)),
    m.Prepare(HEAD, "c1", "knob", {"name": "lr", "value": 0.03, "hold": False}, at=412),
    m.Write(HEAD, "c1", 9),
    m.Outcome(HEAD, "c1", None, "timed out"),
    m.Kept(HEAD, 12),
    m.ShowStacks(HEAD, "s1"),
)
FROM_AGENT: tuple[m.Message, ...] = (
    m.Hello(HEAD, "n1", "host", "boot", 1, 4, (m.Device("CPU-1", "cpu", 0),), (REGISTER,)),
    m.Heartbeat(HEAD, "n1", 1.5, (m.Progress(HEAD, 7, 1, 0.25, 0.005),)),
    m.Batch(HEAD, "n1", 5, (b"\x00raw", b""), dropped=2),
    m.DeviceEvent(HEAD, "GPU-1", "failed", "dcgm", "XID 79"),
    m.Stacks(HEAD, "n1", "s1", (LOOK, LOOK), is_silent=True),
    m.Committed(HEAD, "n1", 100, 3, 1, "/runs/gpt-1a2b/checkpoints/ckpt_step_00100"),
    m.Removed(HEAD, "n1", 100, 3, 1, "store_unavailable", "no answer"),
)
TO_AGENT: tuple[m.Message, ...] = (
    m.Greeting(HEAD, "n1", 4),
    m.Stored(HEAD, 4, 12),
    m.Kill(HEAD, 4, 9, "hang_rank_5"),
    *TO_RANK[:-2],
    m.TakeStacks(HEAD, 4, "s1", ("9f0c",)),
    m.Commit(HEAD, 4, "/runs/gpt-1a2b/checkpoints", 100, 3, 1, b"x\x9c\xabV", True),
    m.Remove(HEAD, 4, "/runs/gpt-1a2b/checkpoints", 90, 2, 1),
    *TO_LAUNCH,
)
UNIONS = {
    m.FromRank: FROM_RANK,
    m.ToRank: TO_RANK,
    r.MembershipReport: TALK,
    r.ToLaunch: TO_LAUNCH,
    m.FromAgent: FROM_AGENT,
    m.ToAgent: TO_AGENT,
}


def missing() -> dict[str, set[str]]:
    """Return which kinds of a union have no sample."""
    return {
        str(union): {kind.__name__ for kind in get_args(union)} - {type(s).__name__ for s in said}
        for union, said in UNIONS.items()
    }
