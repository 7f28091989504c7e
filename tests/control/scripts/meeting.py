"""Ways in which programs meet at MASTER_ADDR:MASTER_PORT, or listen there themselves.

`WAY` names one. Each rank writes what it has got from its peers.
"""

import json
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HOST, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
WAY = os.environ["WAY"]
PATIENCE = timedelta(seconds=100)


def passed(store):
    """Return what the other rank has put into a store."""
    store.set(str(RANK), f"from {RANK}")
    got = store.get(str(1 - RANK)).decode()
    if RANK == 0:  # it may be the one that serves
        store.get("done")
    else:
        store.set("done", "")
    return got


def clients():
    """What libraries do that find `TORCHELASTIC_USE_AGENT_STORE=True`: no rank serves."""
    import torch.distributed as dist

    hosted = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    store = dist.TCPStore(HOST, PORT, is_master=not hosted, timeout=PATIENCE)
    got = passed(store)
    dist.init_process_group("gloo")
    return [hosted, got, summed(dist)]


def master():
    """A script whose first rank serves at the address itself."""
    import torch.distributed as dist

    return passed(dist.TCPStore(HOST, PORT, WORLD, is_master=RANK == 0, timeout=PATIENCE))


def late_master():
    """The same, when the other rank is there first."""
    import torch.distributed as dist

    mark = Path(os.environ["OUT"], "client")
    if RANK == 0:
        while not mark.exists():
            os.sched_yield()
        return passed(dist.TCPStore(HOST, PORT, WORLD, is_master=True, timeout=PATIENCE))
    store = dist.TCPStore(HOST, PORT, wait_for_workers=False, timeout=PATIENCE)
    mark.touch()
    return passed(store)


def own_port():
    """A script with an address of its own."""
    import torch.distributed as dist

    os.environ["MASTER_PORT"] = given_by_rank_0()
    dist.init_process_group("gloo", timeout=PATIENCE)
    return summed(dist)


def own_url():
    import torch.distributed as dist

    url = f"tcp://127.0.0.1:{given_by_rank_0()}"
    dist.init_process_group("gloo", url, rank=RANK, world_size=WORLD, timeout=PATIENCE)
    return summed(dist)


def rpc():
    import torch.distributed.rpc as rpc

    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD)
    got = rpc.rpc_sync(f"worker{1 - RANK}", pow, args=(2, 3 + RANK))
    rpc.shutdown()
    return got


def spawned(number, port):
    import torch.distributed as dist

    os.environ |= {"RANK": str(number), "MASTER_PORT": port}
    dist.init_process_group("gloo", timeout=PATIENCE)
    Path(os.environ["OUT"], f"child-{RANK}-{number}").write_text(str(summed(dist)))


def spawn(method="spawn"):
    """Each rank has a group of its own children."""
    import torch.multiprocessing as mp

    mp.start_processes(spawned, (free_port(),), nprocs=WORLD, start_method=method)
    return [Path(os.environ["OUT"], f"child-{RANK}-{n}").read_text() for n in range(WORLD)]


def fork():
    import torch  # noqa: F401

    return spawn("fork")


def listener():
    """A program that is no torch program serves at the address."""
    if RANK == 0:
        with socket.create_server(("", PORT)) as server:
            peer, _ = server.accept()
            with peer:
                return peer.recv(100).decode()
    while True:
        try:
            with socket.create_connection((HOST, PORT)) as peer:
                peer.send(b"from 1")
                return "sent"
        except ConnectionRefusedError:
            os.sched_yield()


def torchft():
    """A replica group of two ranks, whose Manager opens a store at the address."""
    import torchft
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer("127.0.0.1:0", min_replicas=1) if RANK == 0 else None
    os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse.address() if lighthouse else "unused"
    manager = torchft.Manager(
        torchft.ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=lambda state: None,
        state_dict=dict,
        min_replica_size=1,
        hostname="127.0.0.1",
        timeout=PATIENCE,
    )
    manager.start_quorum()
    done = manager.should_commit()
    step = manager.current_step()
    manager.shutdown()
    return [done, step]


def jax(*where):
    import jax

    jax.distributed.initialize(*where)
    world = jax.process_count()
    mesh = jax.make_mesh((world,), ("ranks",))
    apart, alike = (jax.sharding.NamedSharding(mesh, spec) for spec in (jax.P("ranks"), jax.P()))
    values = jax.numpy.arange(1.0, world + 1)
    parts = jax.make_array_from_callback((world,), apart, lambda at: values[at])
    total = float(jax.jit(jax.numpy.sum, out_shardings=alike)(parts))
    return [jax.process_index(), world, jax.device_count(), total]


def jax_there():
    """JAX's coordinator at torch's address."""
    return jax(f"{HOST}:{PORT}", WORLD, RANK)


def summed(dist):
    import torch

    one = torch.ones(1)
    dist.all_reduce(one)
    dist.destroy_process_group()
    return one.item()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def given_by_rank_0():
    path = Path(os.environ["OUT"], "port")
    if RANK == 0:
        path.with_suffix(".partial").write_text(free_port())
        path.with_suffix(".partial").rename(path)
    while not path.exists():
        os.sched_yield()
    return path.read_text()


if __name__ == "__main__":
    result = globals()[WAY]()
    Path(os.environ["OUT"], f"rank-{RANK}").write_text(json.dumps(result))
    sys.stdout.flush()
