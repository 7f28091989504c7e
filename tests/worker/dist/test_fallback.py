import pytest

from torchloom.worker.dist.setup import BackendFailed, after_backend_failure


def test_a_backend_that_fails_gives_way_to_gloo_with_advice() -> None:
    found = after_backend_failure("nccl", "no device")

    assert found.backend == "gloo"
    assert found.advice[0] == (
        "backend nccl did not start (no device): using gloo instead, for debugging only"
    )
    assert "check the driver with `nvidia-smi` on every host" in found.advice
    assert found.advice[-1] == "--no-fallback, or LOOM_NO_FALLBACK=1 in the ranks, refuses instead"


def test_no_fallback_refuses_with_the_same_advice() -> None:
    with pytest.raises(BackendFailed, match=r"backend xccl did not start: .*sycl-ls"):
        after_backend_failure("xccl", "boom", fallback=False)


def test_gloo_has_nothing_to_give_way_to() -> None:
    with pytest.raises(BackendFailed, match="GLOO_SOCKET_IFNAME"):
        after_backend_failure("gloo", "no route")
