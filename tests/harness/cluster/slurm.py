"""Real Slurm over the hosts: slurmctld and munged on ctl, a slurmd on each other host."""

import os
from pathlib import Path

from ..home import until
from .hosts import CTL, Hosts

CONF = """\
ClusterName=loomtest
SlurmctldHost=ctl({ctl})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=15
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdPort=6818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_min_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=10
InactiveLimit=0
KillWait=2
CompleteWait=0
UnkillableStepTimeout=30
MinJobAge=300
{nodes}PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
"""
NODE = "NodeName={name} NodeAddr={address} CPUs={cpus} RealMemory=8000 State=UNKNOWN\n"
CPUS = 4


class Slurm:
    """One controller, one partition, all hosts in it."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._hosts = hosts
        self._folder = folder
        self.conf = folder / "slurm.conf"

    def start(self) -> None:
        """Start the daemons; come back when every node is idle."""
        self._write()
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        places = {"key-file": "key", "socket": "sock", "pid-file": "pid", "seed-file": "seed"}
        words = [f"--{option}={self._folder}/munge.{end}" for option, end in places.items()]
        words += [f"--log-file={self._folder}/munge.log"]
        self._hosts.daemon(CTL, "munged", "--foreground", "--force", *words)
        until((self._folder / "munge.sock").exists)
        self._hosts.daemon(CTL, "slurmctld", "-D", "-f", self.conf)
        for host in self._hosts.names:
            self._hosts.daemon(host, "slurmd", "-D", "-N", host, "-f", self.conf)
        self.wait_idle()

    def wait_idle(self) -> None:
        """Come back when every node is idle and answers."""
        try:
            until(self._idle)
        except AssertionError as error:
            logs = [path.read_text()[-2000:] for path in self._folder.parent.glob("*/slurm*.log")]
            said = "\n".join([self._ask("sinfo", "--Node", "--long"), *logs])
            raise AssertionError(f"not all nodes are idle:\n{said}") from error

    def cancel_all(self) -> None:
        """End every job, and come back when none is left."""
        if not self._ask("squeue", "--noheader"):
            return
        self._ask("scancel", "--user=root")
        until(lambda: not self._ask("squeue", "--noheader"))

    def _idle(self) -> bool:
        nodes = self._ask("sinfo", "--noheader", "--Node", "--format=%N %T")
        return nodes.split("\n") == [f"{host} idle" for host in self._hosts.names]

    def _ask(self, *words: str) -> str:
        return self._hosts.run(CTL, words).stdout.strip()

    def _write(self) -> None:
        for name in ("state", *(f"spool/{host}" for host in self._hosts.names)):
            (self._folder / name).mkdir(parents=True)
        addresses = self._hosts.addresses
        nodes = [
            NODE.format(name=host, address=addresses[host], cpus=CPUS) for host in self._hosts.names
        ]
        text = CONF.format(ctl=addresses[CTL], folder=self._folder, nodes="".join(nodes))
        self.conf.write_text(text)
        (self._folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
