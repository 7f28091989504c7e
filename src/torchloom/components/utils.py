"""Small ready-made components: one command each, to try an engine or to glue steps together."""

import shlex

from torchloom.components.defaults import IMAGE, log_level
from torchloom.specs.api import NONE, AppDef, Resource, Role, resource
from torchloom.specs.arguments import ArgumentError
from torchloom.specs.builders import parse_mounts


def echo(msg: str = "hello world", image: str = IMAGE, num_replicas: int = 1) -> AppDef:
    """Print a message.

    Args:
        msg: what to print
        image: container image to run in
        num_replicas: how many copies print it
    """
    role = Role(
        name="echo",
        image=image,
        entrypoint="echo",
        args=[msg],
        num_replicas=num_replicas,
        resource=Resource(cpu=1, gpu=0, memMB=1024),
    )
    return AppDef(name="echo", roles=[role])


def touch(file: str, image: str = IMAGE) -> AppDef:
    """Create an empty file, or renew its time.

    Args:
        file: path of the file
        image: container image to run in
    """
    role = Role(
        name="touch",
        image=image,
        entrypoint="touch",
        args=[file],
        num_replicas=1,
        resource=Resource(cpu=1, gpu=0, memMB=1024),
    )
    return AppDef(name="touch", roles=[role])


def sh(
    *args: str,
    image: str = IMAGE,
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    entrypoint: str | None = None,
) -> AppDef:
    """Run a command with sh. Each word is quoted, so the shell does not expand variables in it.

    Args:
        args: the command and its arguments
        image: container image to run in
        num_replicas: how many copies run
        cpu: cores of each replica
        gpu: GPUs of each replica
        memMB: memory of each replica in MB
        h: named resource, instead of cpu, gpu and memMB
        env: variables of the replicas (A=1,B=2)
        max_retries: how often the engine may start it again
        mounts: what the replicas see of the host (type=bind,src=/host,dst=/job[,readonly])
        entrypoint: program to run the words with, instead of sh
    """
    words = [shlex.quote(arg) for arg in args]
    role = Role(
        name="sh",
        image=image,
        entrypoint="sh" if entrypoint is None else entrypoint,
        args=["-c", " ".join(words)] if entrypoint is None else words,
        num_replicas=num_replicas,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        env={"LOGLEVEL": log_level(), **(env or {})},
        max_retries=max_retries,
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name="sh", roles=[role])


def python(
    *args: str,
    m: str | None = None,
    c: str | None = None,
    script: str | None = None,
    image: str = IMAGE,
    name: str = "torchx_utils_python",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
    num_replicas: int = 1,
    mounts: list[str] | None = None,
) -> AppDef:
    """Run a Python module, program text or script. Words after `--` go to the program.

    Args:
        args: the program's own arguments
        m: module to run
        c: program text to run
        script: script to run
        image: container image to run in
        name: name of the job
        cpu: cores of each replica
        gpu: GPUs of each replica
        memMB: memory of each replica in MB
        h: named resource, instead of cpu, gpu and memMB
        num_replicas: how many copies run
        mounts: what the replicas see of the host (type=bind,src=/host,dst=/job[,readonly])
    """
    programs = {"-m": m, "-c": c, "": script}
    given = [(flag, text) for flag, text in programs.items() if text is not None]
    if len(given) != 1 or not given[0][1]:
        raise ArgumentError("utils.python needs exactly one of -m, -c and --script")
    program = [word for word in given[0] if word]
    role = Role(
        name="python",
        image=image,
        entrypoint="python",
        num_replicas=num_replicas,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        args=[*program, *args],
        env={"HYDRA_MAIN_MODULE": m} if m else {},
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name=name, roles=[role])


def binary(
    *args: str,
    entrypoint: str,
    name: str = "torchx_utils_binary",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,
    h: str | None = None,
) -> AppDef:
    """Run a program as it is, without a shell and without an image.

    Args:
        args: the program's arguments
        entrypoint: the program
        name: name of the job
        num_replicas: how many copies run
        cpu: cores of each replica
        gpu: GPUs of each replica
        memMB: memory of each replica in MB
        h: named resource, instead of cpu, gpu and memMB
    """
    role = Role(
        name="binary",
        image=NONE,
        entrypoint=entrypoint,
        num_replicas=num_replicas,
        args=[*args],
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
    )
    return AppDef(name=name, roles=[role])


def copy(src: str, dst: str, image: str = IMAGE, mounts: list[str] | None = None) -> AppDef:
    """Copy one file. Paths and file:// work everywhere; other URLs where fsspec is installed.

    Args:
        src: file to read
        dst: file to write
        image: container image to run in; it needs torchloom
        mounts: what the replica sees of the host (type=bind,src=/host,dst=/job[,readonly])
    """
    role = Role(
        name="torchx-utils-copy",
        image=image,
        entrypoint="python",
        args=["-m", "torchloom.components.copy_file", "--src", src, "--dst", dst],
        resource=Resource(cpu=1, gpu=0, memMB=1024),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name="torchx-utils-copy", roles=[role])
