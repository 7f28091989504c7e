"""Several hosts on this machine: what crosses a host boundary is tried between these.

`ctl` (10.77.0.1) and n1 .. n4 (10.77.0.11 ..) are namespaces. Each has its own name, addresses,
loopback, processes (no host sees, numbers or kills another's), /dev/shm, /run, IPC and boot id;
files are shared, this checkout and tmp_path among them, unless `private(path)` says otherwise.

    def test_a_rank_on_another_host_is_reached(ssh_cluster: Cluster, tmp_path: Path) -> None:
        done = ssh_cluster.run("n1", ["ssh", "n3", "hostname"], timeout=20)
        assert (done.returncode, done.stdout, done.stderr) == (0, "n3\\n", "")

    def test_a_silent_host_is_noticed(slurm_cluster: Cluster, home: Path) -> None:
        slurm_cluster.private(home, ["n2"])                      # n2 shares no $LOOM_HOME
        job = slurm_cluster.popen("ctl", ["salloc", "-N2", "loom", "launch", "train.py"])
        until(lambda: slurm_cluster.pids("n2"))
        slurm_cluster.cut("n2")                                  # or kill_host("n2")
        assert job.wait(30) == 1

- Fixtures: `cluster` (bare), `ssh_cluster`, `slurm_cluster`, and `pbs_cluster` and `lsf_cluster`,
  strict fakes (see `pbs` and `lsf`); a test may ask for several, they are one and the same. Asking
  for one marks the test `process` and gives it the needs it has. After each test processes are
  killed, cables mended, daemons started again, jobs cancelled. Ask for it before `home`, so that
  `home` looks for leftovers first. `with Cluster(2) as hosts:` is one apart.
- `run` and `popen` add `env` to the test's own environment and start in the test's folder. The
  XDG_RUNTIME_DIR of `home` is one for all hosts: `env={"XDG_RUNTIME_DIR": "/run/user/0"}` is not.
  `popen(...).pid` and `pids(host)` are numbers for `os.kill` in the test; what a program on a host
  calls its own pid counts there alone: `run("n1", ["kill", "-9", pid])`.
- `salloc(2, ["srun", "hostname"])` runs on ctl and gives one CPU a node: `options=["--nodelist=
  n1,n2", "--ntasks-per-node=2"]` says which nodes and how much of them, of 4 CPUs each.
- `ssh_cluster` is enough for `mpirun.openmpi --hostfile F`, on any host; `hostfile(path)` writes F.
  An ssh session gets a system's PATH and nothing of the client's environment.
"""

from .cluster import Cluster
from .fixtures import NEEDS

__all__ = ["Cluster", "NEEDS"]
