"""`-R`, `-n` and `-gpu`: the slots a job asks for, and how they lie on hosts."""

import re
from dataclasses import dataclass

from ..batch.job import Chunk
from .words import BAD_RESOURCE, BAD_RESREQ, bad_argument, not_done, not_submitted

SECTION = re.compile(r"\s*([a-z]+)\[([^\[\]]*)\]\s*")
SECTIONS = ("select", "order", "rusage", "span", "same", "cu", "affinity")
RUSAGE = ("mem", "swp", "tmp", "ngpus_physical", "duration", "decay")
METHODS = ("task", "job", "host")  # whose a reservation is; memory is a host's by default
GPU = {
    "num": r"\d+(/(task|host))?",
    "mode": r"shared|exclusive_process",
    "mps": r"yes(,(shared|nocvd))?|no|per_socket|per_gpu",
    "j_exclusive": r"yes|no",
    "aff": r"yes|no",
    "block": r"yes|no",
    "gmodel": r"[\w.-]+",
    "gmem": r"\d+[KMGT]?B?",
    "gvendor": r"nvidia|amd",
    "nvlink": r"yes|no|force",
}
SCALE = {"": 1, "M": 1, "K": 1 / 1024, "G": 1024, "T": 1024**2}
SIZE = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)


@dataclass
class Request:
    """What is asked for on hosts."""

    ptile: int | None = None
    one_host: bool = False
    memory_mb: int = 0
    memory_of: str = "host"  # or of each task, or of the whole job


def slots(value: str) -> tuple[int, int]:
    """Return `min[,max]` of `-n`."""
    match = re.fullmatch(r"(\d+)(?:,(\d+))?", value)
    if not match:
        raise bad_argument("n")
    least, most = int(match[1]), int(match[2] or match[1])
    if not least or not most:
        raise not_submitted("The number of processors must be a positive integer")
    if least > most:
        raise bad_argument("n")
    return least, most


def requirement(texts: list[str]) -> Request:
    """Read all `-R` of a job."""
    request = Request()
    for text in texts:
        sections = list(SECTION.finditer(text))
        if "".join(match[0] for match in sections) != text or not sections:
            raise not_submitted(BAD_RESREQ)
        for name, inside in (match.groups() for match in sections):
            if name not in SECTIONS:
                raise not_submitted(BAD_RESREQ)
            _take(name, inside.strip(), request)
    return request


def gpus(value: str) -> tuple[int, bool]:
    """Return how many GPUs `-gpu` asks for, and whether for each task."""
    if value == "-":
        return 1, False
    found = {}
    for item in value.split(":"):
        name, _, text = item.partition("=")
        if name not in GPU or name in found or not re.fullmatch(GPU[name], text):
            raise bad_argument("gpu")
        found[name] = text
    number, _, per = found.get("num", "1").partition("/")
    return int(number), per == "task"


def chunks(number: int, request: Request, gpu: tuple[int, bool], hosts: str) -> list[Chunk]:
    """Return the slots, grouped as they must lie on one host."""
    size = request.ptile or (number if request.one_host else 1)
    sizes = [min(size, number - start) for start in range(0, number, size)]
    each, per_task = gpu
    return [
        Chunk(
            cpus=slot,
            gpus=each * slot if per_task else each,
            memory_mb=_memory(request, slot, number),
            ranks=slot,
            host=hosts,
        )
        for slot in sizes
    ]


def _memory(request: Request, slot: int, number: int) -> int:
    """Return what a host reserves for so many slots of a job's number."""
    if request.memory_of == "host":
        return request.memory_mb
    share = slot if request.memory_of == "task" else slot / number
    return int(request.memory_mb * share)


def megabytes(text: str) -> int | None:
    """Return a size; megabytes where it has no unit."""
    match = SIZE.fullmatch(text)
    return int(int(match[1]) * SCALE[match[2].upper()]) if match else None


def _take(name: str, inside: str, request: Request) -> None:
    if name == "span":
        match = re.fullmatch(r"(hosts|ptile)=(\d+)", inside)
        if not match or match[2] == "0" or (match[1] == "hosts" and match[2] != "1"):
            raise not_submitted(BAD_RESREQ)
        request.one_host = match[1] == "hosts"
        request.ptile = int(match[2]) if match[1] == "ptile" else None
    elif name == "rusage":
        for item in re.split(r"[,:]", inside):
            resource, sign, value = item.strip().partition("=")
            if not sign or not value:
                raise not_submitted(BAD_RESREQ)
            if resource not in RUSAGE:
                raise not_submitted(BAD_RESOURCE)
            value, slash, method = value.partition("/")
            if slash and method not in METHODS:
                raise not_submitted(BAD_RESREQ)
            if resource == "mem":
                size = megabytes(value)
                if size is None:
                    raise not_submitted(BAD_RESREQ)
                request.memory_mb, request.memory_of = size, method or "host"
    elif name == "select":
        if not re.fullmatch(r"\(?type\s*==\s*'?(any|local)'?\)?", inside):
            raise not_done("bsub", f"select[{inside}]")
    elif name == "order":
        if not re.fullmatch(r"-?\w+(:-?\w+)*", inside):
            raise not_submitted(BAD_RESREQ)
    else:
        raise not_done("bsub", f"{name}[]")
