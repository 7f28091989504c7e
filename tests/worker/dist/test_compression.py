"""What is sent of a bucket, and what is left, judged by numpy."""

from collections.abc import Callable

import numpy
import pytest

torch = pytest.importorskip("torch")

from torchloom.worker.dist.compression import (  # noqa: E402
    Codec,
    Int8,
    OneBit,
    TopK,
    exchange,
)
from torchloom.worker.run.exchange import FrozenAdam  # noqa: E402

pytestmark = pytest.mark.needs("torch")
SIZES = [300, 17, 64, 1]
COUNT = sum(SIZES)
Flat = "numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]"


def largest(flat: Flat) -> Flat:
    """Return a tenth of the numbers, those furthest from 0, and 0 for the others."""
    kept = numpy.argsort(-numpy.abs(flat))[: round(COUNT / 10)]
    sent = numpy.zeros_like(flat)
    sent[kept] = flat[kept]
    return sent


def signs(flat: Flat) -> Flat:
    parts = numpy.split(flat, numpy.cumsum(SIZES)[:-1])
    return numpy.concatenate(
        [numpy.abs(part).mean() * numpy.where(part >= 0, 1, -1) for part in parts]
    ).astype(numpy.float32)


def rounded(flat: Flat) -> Flat:
    """Return numbers in steps of a 127th of the furthest of their block of 32."""
    found = []
    for at in range(0, COUNT, 32):
        block = flat[at : at + 32]
        step = numpy.abs(block).max() / numpy.float32(127)
        found.append(numpy.round(block / step) * step)
    return numpy.concatenate(found)


JUDGES: list[tuple[Codec, Callable[[Flat], Flat], int]] = [
    (TopK(lambda: 0.1), largest, 8 * round(COUNT / 10)),
    (OneBit(), signs, 4 * len(SIZES) + -(-COUNT // 8)),
    (Int8(32), rounded, 4 * -(-COUNT // 32) + COUNT),
]
names = ["topk", "onebit", "int8"]


@pytest.mark.parametrize(("codec", "judge", "size"), JUDGES, ids=names)
def test_a_codec_sends_what_numpy_says_in_as_many_bytes(
    codec: Codec, judge: Callable[[Flat], Flat], size: int
) -> None:
    flat = torch.randn(COUNT, generator=torch.Generator().manual_seed(3))

    payload = codec.encode(flat, SIZES)
    sent = torch.ones(COUNT)
    codec.add(payload, sent, SIZES)

    assert (payload.dtype, payload.numel()) == (torch.uint8, size)
    numpy.testing.assert_allclose(sent.numpy() - 1, judge(flat.numpy()), atol=2e-6)


@pytest.mark.parametrize(("codec", "judge", "size"), JUDGES, ids=names)
def test_all_that_was_sent_and_the_error_are_all_gradients(
    codec: Codec, judge: object, size: int
) -> None:
    source = torch.Generator().manual_seed(4)
    error, sent, gradients = (torch.zeros(COUNT) for _ in range(3))

    for _ in range(20):
        gradient = torch.randn(COUNT, generator=source)
        gradients += gradient
        payload = exchange(codec, gradient + error, SIZES, error)
        codec.add(payload, sent, SIZES)

    assert error.abs().max() > 0
    torch.testing.assert_close(sent + error, gradients, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("codec", "judge", "size"), JUDGES, ids=names)
def test_nothing_to_send_is_nothing(codec: Codec, judge: object, size: int) -> None:
    error, found = torch.ones(COUNT), torch.zeros(COUNT)

    codec.add(exchange(codec, torch.zeros(COUNT), SIZES, error), found, SIZES)

    assert (found.abs().max(), error.abs().max()) == (0, 0)


class OneParameter:
    """A bucket of one parameter."""

    def __init__(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        self._parameter, self._gradient = parameter, gradient

    def buffer(self) -> torch.Tensor:
        return self._gradient

    def gradients(self) -> list[torch.Tensor]:
        return [self._gradient]

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_adam_steps_with_the_mean_momentum_and_the_variance_of_its_warm_up(kind: str) -> None:
    source = torch.Generator().manual_seed(5)
    parameter = torch.nn.Parameter(torch.randn(50, generator=source))
    optimizer = getattr(torch.optim, kind)([parameter], lr=0.1, weight_decay=0.0)
    for _ in range(5):
        parameter.grad = torch.randn(50, generator=source)
        optimizer.step()
    state = {name: each.clone() for name, each in optimizer.state[parameter].items()}
    variance = state["exp_avg_sq"] / (1 - 0.999**5)
    frozen = FrozenAdam(lambda: [optimizer])
    before = parameter.detach().clone()

    for step in (6, 7):
        frozen.begin_step()
        gradient = torch.randn(50, generator=source)
        momentum = 0.9 * optimizer.state[parameter]["exp_avg"] + 0.1 * gradient
        frozen.to_momenta(OneParameter(parameter, gradient))
        torch.testing.assert_close(gradient, momentum)
        parameter.grad = gradient.sign() * gradient.abs().mean()  # as all ranks together send it
        mean = parameter.grad.clone()
        optimizer.step()
        before -= 0.1 * mean / (1 - 0.9**step) / (variance.sqrt() + 1e-8)

        torch.testing.assert_close(optimizer.state[parameter]["exp_avg"], mean)
        torch.testing.assert_close(parameter.detach(), before)
