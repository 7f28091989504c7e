"""Instance types of EC2 as named resources: `aws_p5.48xlarge`.

The figures are those of TorchX: memory is what is left of an instance's after the system's part.
"""

from collections.abc import Callable, Mapping
from functools import partial

from torchloom.specs.resources import Resource

EFA_DEVICE = "vpc.amazonaws.com/efa"
NEURON_DEVICE = "aws.amazon.com/neurondevice"
K8S_ITYPE = "node.kubernetes.io/instance-type"
GiB = 1024
MEM_TAX = 0.96  # of the memory can be given to a job; AWS Batch never starts one that asks for more

# instance type: cores, GPUs, GiB of memory
_SIZES: Mapping[str, tuple[int, int, int]] = {
    "t3.medium": (2, 0, 4),
    **{
        f"{family}.{size}": (cores, 0, 4 * cores)
        for family in ("m5", "m5d")
        for size, cores in {
            "large": 2,
            "xlarge": 4,
            "2xlarge": 8,
            "4xlarge": 16,
            "8xlarge": 32,
            "12xlarge": 48,
            "16xlarge": 64,
            "24xlarge": 96,
            "metal": 96,
        }.items()
    },
    "c5.18xlarge": (72, 0, 142),
    "p3.2xlarge": (8, 1, 61),
    "p3.8xlarge": (32, 4, 244),
    "p3.16xlarge": (64, 8, 488),
    "p3dn.24xlarge": (96, 8, 768),
    "p4d.24xlarge": (96, 8, 1152),
    "p4de.24xlarge": (96, 8, 1152),
    "p5.48xlarge": (192, 8, 2048),
    "p5e.48xlarge": (192, 8, 2048),
    "p5en.48xlarge": (192, 8, 2048),
    "p6-b200.48xlarge": (192, 8, 2048),
    "p6-b300.48xlarge": (192, 8, 4096),
    "p6e-gb200.36xlarge": (144, 4, 960),
    "g4dn.xlarge": (4, 1, 16),
    "g4dn.2xlarge": (8, 1, 32),
    "g4dn.4xlarge": (16, 1, 64),
    "g4dn.8xlarge": (32, 1, 128),
    "g4dn.16xlarge": (64, 1, 256),
    "g4dn.12xlarge": (48, 4, 192),
    "g4dn.metal": (96, 8, 384),
    "g5.xlarge": (4, 1, 16),
    "g5.2xlarge": (8, 1, 32),
    "g5.4xlarge": (16, 1, 64),
    "g5.8xlarge": (32, 1, 128),
    "g5.16xlarge": (64, 1, 256),
    "g5.12xlarge": (48, 4, 192),
    "g5.24xlarge": (96, 4, 384),
    "g5.48xlarge": (192, 8, 768),
    "g6e.xlarge": (4, 1, 32),
    "g6e.2xlarge": (8, 1, 64),
    "g6e.4xlarge": (16, 1, 128),
    "g6e.8xlarge": (32, 1, 256),
    "g6e.16xlarge": (64, 1, 512),
    "g6e.12xlarge": (48, 4, 384),
    "g6e.24xlarge": (96, 4, 768),
    "g6e.48xlarge": (192, 8, 1536),
    "trn1.2xlarge": (8, 0, 32),
    "trn1.32xlarge": (128, 0, 512),
    "inf2.xlarge": (4, 0, 16),
    "inf2.8xlarge": (32, 0, 128),
    "inf2.24xlarge": (96, 0, 384),
    "inf2.48xlarge": (192, 0, 768),
}
_EFA: Mapping[str, int] = {  # network devices
    "p3dn.24xlarge": 1,
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 16,
    "p6e-gb200.36xlarge": 16,
    "g4dn.8xlarge": 1,
    "g4dn.16xlarge": 1,
    "g4dn.12xlarge": 1,
    "g4dn.metal": 1,
    "g5.8xlarge": 1,
    "g5.16xlarge": 1,
    "g5.12xlarge": 1,
    "g5.24xlarge": 1,
    "g5.48xlarge": 1,
    "g6e.24xlarge": 2,
    "g6e.48xlarge": 4,
    "trn1.32xlarge": 8,
}
_NEURON: Mapping[str, int] = {  # accelerators
    "trn1.2xlarge": 1,
    "trn1.32xlarge": 16,
    "inf2.xlarge": 1,
    "inf2.8xlarge": 1,
    "inf2.24xlarge": 6,
    "inf2.48xlarge": 12,
}


def instance_type_from_resource(resource: Resource) -> str | None:
    """Return the instance type of a resource; a warning and None if it has none."""
    found: str | None = resource.capabilities.get(K8S_ITYPE)
    if found is None:
        import warnings

        problem = f"the resource names no instance type: set its capability {K8S_ITYPE!r}"
        warnings.warn(problem, stacklevel=2)
    return found


def _instance(name: str) -> Resource:
    cores, gpus, memory = _SIZES[name]
    devices = {EFA_DEVICE: _EFA.get(name, 0), NEURON_DEVICE: _NEURON.get(name, 0)}
    return Resource(
        cores,
        gpus,
        memory * int(GiB * MEM_TAX),
        {K8S_ITYPE: name},
        {device: count for device, count in devices.items() if count},
    )


NAMED_RESOURCES: Mapping[str, Callable[[], Resource]] = {
    f"aws_{name}": partial(_instance, name) for name in _SIZES
}
_FUNCTIONS = {name.replace(".", "_").replace("-", "_"): name for name in NAMED_RESOURCES}


def __getattr__(name: str) -> Callable[[], Resource]:
    """Return `aws_p5_48xlarge`: TorchX has a function for each instance type."""
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return NAMED_RESOURCES[_FUNCTIONS[name]]
