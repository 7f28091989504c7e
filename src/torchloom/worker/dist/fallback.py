"""What to do if a backend does not start: fall back to gloo with advice, or fail."""

from collections.abc import Mapping

from torchloom.errors import Failure
from torchloom.specs.dataclass import dataclass

ADVICE: Mapping[str, tuple[str, ...]] = {
    "nccl": (
        "check the driver with `nvidia-smi` on every host",
        "load the CUDA modules that torch was built for",
        "NCCL_DEBUG=INFO shows which interface it tried; NCCL_SOCKET_IFNAME chooses one",
    ),
    "xccl": (
        "load the oneAPI and frameworks modules of this site",
        "check that `sycl-ls` lists the devices and ZE_AFFINITY_MASK does not hide them",
    ),
    "ccl": ("load the oneAPI modules; oneccl_bindings_for_pytorch must match this torch",),
    "mpi": ("this torch must be built with MPI; most wheels are not",),
}
ANY = ("GLOO_SOCKET_IFNAME chooses the interface that gloo uses",)


@dataclass(frozen=True, slots=True)
class Fallback:
    """The backend to use instead, and advice for the user."""

    backend: str
    advice: tuple[str, ...]


class BackendFailed(Failure):
    """The backend did not start, and no other may be used."""

    code = "backend_failed"

    def __init__(self, backend: str, error: str, advice: tuple[str, ...]) -> None:
        self.backend = backend
        super().__init__("; ".join([f"backend {backend} did not start: {error}", *advice]))


def after_backend_failure(backend: str, error: str, fallback: bool = True) -> Fallback:
    """Return gloo and what to check; gloo's own failure, or `--no-fallback`, is final."""
    advice = ADVICE.get(backend, ANY)
    if not fallback or backend == "gloo":
        raise BackendFailed(backend, error, advice)
    note = f"backend {backend} did not start ({error}): using gloo instead, for debugging only"
    refuse = "--no-fallback, or LOOM_NO_FALLBACK=1 in the ranks, refuses instead"
    return Fallback("gloo", (note, *advice, refuse))
