"""Machine sizes of no particular provider, for defaults and examples."""

from collections.abc import Callable, Mapping
from functools import partial

from torchloom.specs.resources import Resource

GiB = 1024

NAMED_RESOURCES: Mapping[str, Callable[[], Resource]] = {
    "gpu.small": partial(Resource, cpu=8, gpu=1, memMB=32 * GiB),
    "gpu.medium": partial(Resource, cpu=16, gpu=2, memMB=64 * GiB),
    "gpu.large": partial(Resource, cpu=32, gpu=4, memMB=128 * GiB),
    "gpu.xlarge": partial(Resource, cpu=64, gpu=8, memMB=256 * GiB),
    "cpu.nano": partial(Resource, cpu=1, gpu=0, memMB=512),
    "cpu.micro": partial(Resource, cpu=1, gpu=0, memMB=1 * GiB),
    "cpu.small": partial(Resource, cpu=1, gpu=0, memMB=2 * GiB),
    "cpu.medium": partial(Resource, cpu=2, gpu=0, memMB=4 * GiB),
    "cpu.large": partial(Resource, cpu=2, gpu=0, memMB=8 * GiB),
    "cpu.xlarge": partial(Resource, cpu=8, gpu=0, memMB=32 * GiB),
}
