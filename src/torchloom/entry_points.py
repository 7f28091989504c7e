"""Modules and files that other processes, queued scripts and stored specs start by name.

A running plane, a script that waits in a batch queue or a job that was stored names them after an
upgrade too, so each keeps its name; where the code lives elsewhere, it is a module of one line.
"""

from collections.abc import Mapping

MODULES: Mapping[str, str] = {  # `python -m NAME`, and what names it
    "torchloom": "people, `loom monitor`, and jobs of a batch engine",
    "torchloom.accounts": "a plane of root, to become a unix account",
    "torchloom.cli.batch": "scripts that wait in the queue of Slurm, PBS or LSF",
    "torchloom.chaos.undo": "`loom chaos`, to undo faults when it is killed",
    "torchloom.cli.torchrun": "the shim that stands for torchrun in a rank's PATH",
    "torchloom.components.copy_file": "stored apps of the component `utils.copy`",
    "torchloom.launch.agent.node": "hosts of a launch, started by ssh or a native launcher",
    "torchloom.launch.hosts.native_rank": "ranks of a launch, started by srun or mpiexec",
    "torchloom.launch.supervisor.process": "`loom run`, `loom launch` and the plane: one a run",
    "torchloom.launch.node_agent": "the plane and ranks of others: the agent of a node",
    "torchloom.monitor_cli": "people: the prompt of `loom monitor`",
    "torchloom.server": "the plane",
    "torchloom.weaver": "the plane",
    "torchloom.weaver.account_runs": "a plane of root, for runs of a unix account",
    "torchloom.weaver.core": "people: a plane in the foreground",
    "torchloom.plane": "`loom up`, and commands that need a plane",
    "torchloom.worker.inspecting": "`loom checkpoint`, with the interpreter of the job",
    "torchloom.worker.servers": "stored jobs whose strategy is parameter_server",
    "torchloom.worker.smoke": "people, and `loom test`",
    "torchloom.worker.process.store": "a launch whose ranks meet in a TCP store",
    "torchloom.worker.train": "stored jobs that name a model",
    "torchloom.worker.process.zygote": "launches on a host, with the interpreter of the job",
}
EARLIER: Mapping[str, str] = {  # by the names that earlier versions and their scripts have for them
    "torchloom.launch.node": "torchloom.launch.agent.node",
    "torchloom.launch.per_rank": "torchloom.launch.hosts.native_rank",
    "torchloom.launch.process": "torchloom.launch.supervisor.process",
    "torchloom.launch.relay": "torchloom.launch.node_agent",
    "torchloom.weaver.plane": "torchloom.plane",
    "torchloom.worker.store": "torchloom.worker.process.store",
    "torchloom.worker.zygote": "torchloom.worker.process.zygote",
}
FILES: Mapping[str, str] = {  # run by their path in the package
    "envs/relocate.py": "packed environments, which hold a copy of it",
    "server/logs/matcher.py": "the server, for patterns in log searches",
    "worker/start.py": "ranks in a fresh interpreter",
}
