"""A checkpoint that is damaged, half, gone or older than it was is found."""

from .staged import KILLED, Stage


def damaged(stage: Stage, name: str = "ckpt_step_00008", shard: str = "worker_1.pt") -> None:
    path = stage.run / "checkpoints" / name / shard
    path.write_bytes(b"#" + path.read_bytes()[1:])


def hit_on_purpose(stage: Stage, step: int, **more: object) -> None:
    place = stage.run / "checkpoints" / f"ckpt_step_{step:05d}" / "worker_1.pt"
    target = {"what": "shard", "rank": None, "pid": None, "started": None, "name": str(place)}
    times = {"struck_at": KILLED, "recovered_at": KILLED + 1, **more}
    fault = {"n": 2, "kind": "corrupt-shard", "outcome": "struck", "target": target, **times}
    stage.strikes.insert(-1, fault)
    stage.struck()


def test_a_shard_with_another_byte_breaks_the_first_promise(stage: Stage) -> None:
    damaged(stage)

    assert stage.broken() == {"I1": "ckpt_step_00008: worker_1.pt has a different hash"}


def test_a_shard_that_is_too_short_is_found_without_its_hash(stage: Stage) -> None:
    stage.run.joinpath("checkpoints/ckpt_step_00004/worker_0.pt").write_bytes(b"x")

    assert stage.broken() == {"I1": "ckpt_step_00004: worker_0.pt has 1 bytes, not 6"}


def test_what_was_damaged_on_purpose_breaks_nothing(stage: Stage) -> None:
    damaged(stage)
    hit_on_purpose(stage, 8)

    assert stage.broken() == {}


def test_what_was_damaged_on_purpose_may_not_be_loaded(stage: Stage) -> None:
    hit_on_purpose(stage, 4)
    place = str(stage.run / "checkpoints" / "ckpt_step_00004")
    stage.told("b1", 2, "restored", KILLED + 0.3, checkpoint=place)

    assert stage.broken() == {"I1": "rank 0 loaded ckpt_step_00004, which was damaged before"}


def test_what_was_mended_may_be_loaded(stage: Stage) -> None:
    hit_on_purpose(stage, 4, undone_at=KILLED + 0.1)
    place = str(stage.run / "checkpoints" / "ckpt_step_00004")
    stage.told("b1", 2, "restored", KILLED + 0.3, checkpoint=place)

    assert stage.broken() == {}


def test_a_checkpoint_without_all_its_shards_is_half(stage: Stage) -> None:
    stage.run.joinpath("checkpoints/ckpt_step_00008/worker_0.pt").unlink()

    fact = "ckpt_step_00008: worker_0.pt is missing"
    assert stage.broken() == {"I1": fact, "I2": fact}


def test_a_newest_checkpoint_that_goes_back_is_found(stage: Stage) -> None:
    checker = stage.checker()
    stage.run.joinpath("checkpoints/ckpt_step_00008").rename(stage.run / "checkpoints" / "away")
    stage.sql("state", "update checkpoints set state = 'removed' where step = 8")

    checker.look(2)

    facts = {one.name: one.fact for one in checker.judged().verdicts}
    assert facts["I2"] == "the newest was step 8, after fault 2 it is 4"


def test_a_committed_checkpoint_that_somebody_removed_is_missed(stage: Stage) -> None:
    stage.run.joinpath("checkpoints/ckpt_step_00004").rename(stage.run / "checkpoints" / "away")

    assert stage.broken() == {
        "I2": "ckpt_step_00004 is committed in the database but does not exist"
    }
