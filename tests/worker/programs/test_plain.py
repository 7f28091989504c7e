"""Loops that use no framework and no API: their loss is on record as they compute it themselves."""

import json
import math
from pathlib import Path

import pytest

from torchloom.messages.plane import Metrics

from ..threadlet.conftest import Ranks
from ..threadlet.fake_agent import FakeAgent

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SCRIPTS = Path(__file__).parent / "scripts"
KINDS = (
    "plain",
    "accumulation",
    "scaler",
    "gan",
    "two optimizers",
    "gradient penalty",
    "two losses",
    "list of losses",
    "no scalar",
    "one element",
    "recomputed",
    "closure",
    "accumulated closure",
    "not a number",
    "compiled",
    "evaluation between",
    "own numbers",
)


def points(agent: FakeAgent, *names: str) -> list[tuple[str, int, float]]:
    """Return name, step and value of each number that was sent under one of these names."""
    return [
        (name, int(row[0]), float(row[at]))  # type: ignore[arg-type]
        for metrics in agent.of(Metrics)
        for row in metrics.rows
        for at, name in enumerate(metrics.names, 2)
        if name in names
    ]


@pytest.mark.shows("Plain loop", "curve")
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_loop_is_the_one_it_computes(ranks: Ranks, kind: str) -> None:
    ranks.run_and_close(str(SCRIPTS / "loops.py"), KIND=kind)

    lines = (ranks.folder / "rank-0").read_text().splitlines()
    expected = [tuple(json.loads(line)) for line in lines]
    found = points(ranks.agent, "loss", "opt2.loss")
    assert [name for name, _, _ in found] == [name for name, _ in expected]
    for (_, _, value), (_, wanted) in zip(found, expected, strict=True):
        both_nan = math.isnan(value) and math.isnan(wanted)
        assert both_nan or value == pytest.approx(wanted, rel=1e-6)
    if kind in ("plain", "accumulation", "gan"):
        assert [step for _, step, _ in found] == list(range(len(found)))


def test_batches_and_gradients_are_measured_where_a_loop_has_them(ranks: Ranks) -> None:
    (printed,) = ranks.run_and_close(str(SCRIPTS / "loader.py"))

    norms = [value for _, _, value in points(ranks.agent, "grad_norm")]
    sizes = {value for _, _, value in points(ranks.agent, "loom/batch_size")}
    rates = [value for _, _, value in points(ranks.agent, "loom/samples_per_second")]
    assert norms == pytest.approx(json.loads(printed.splitlines()[-1]))
    assert sizes == {10.0}  # not the 40 of the evaluation
    # Two batches of ten in a step that sleeps so long; two steps more where a second is cut out.
    assert 0 < max(rates) <= 20 / 0.15 + 40


@pytest.mark.parametrize(
    ("skipped", "left"),
    [("loss", {"grad_norm", "loom/batch_size"}), ("grad_norm, batches", {"loss"})],
)
def test_what_the_user_skips_is_not_observed(ranks: Ranks, skipped: str, left: set[str]) -> None:
    ranks.run_and_close(str(SCRIPTS / "loader.py"), EPOCHS="2", LOOM_ATTACH_SKIP=skipped)

    names = {"loss", "grad_norm", "loom/batch_size"}
    assert {name for name, _, _ in points(ranks.agent, *names)} == left
