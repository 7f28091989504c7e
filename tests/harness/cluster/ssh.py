"""A real sshd on every host and a client that needs no password, all of it in one folder."""

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ..home import until
from .hosts import CTL, Hosts

SERVER = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PermitUserRC no
PrintMotd no
PidFile none
Subsystem sftp internal-sftp
MaxStartups 100
MaxSessions 100
SetEnv {env}
"""
CLIENT = """\
Host *
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  BatchMode yes
  LogLevel ERROR
"""


def start(hosts: Hosts, folder: Path, env: Mapping[str, str]) -> Path:
    """Start a server on each host but ctl; return the client's configuration for `ssh -F`.

    A session gets `env`, and nothing of the client's: as anywhere else.
    """
    folder.mkdir()
    for key in ("host_key", "user_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", str(folder / key)]
        subprocess.run(words, check=True)
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"* {public}")
    config = folder / "ssh_config"
    config.write_text(CLIENT.format(folder=folder))
    variables = " ".join(f'"{name}={value}"' for name, value in env.items())
    for host in hosts.names:
        server = folder / f"sshd_config.{host}"
        server.write_text(
            SERVER.format(address=hosts.addresses[host], folder=folder, env=variables)
        )
        hosts.daemon(host, sshd(), "-D", "-e", "-f", server)
    for host in hosts.names:
        until(functools.partial(answers, hosts, host))
    return config


def sshd() -> str:
    """Return the absolute path of sshd, which it asks for."""
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") or "/usr/sbin/sshd"


def answers(hosts: Hosts, host: str) -> bool:
    """Say whether the server of a host answers the others."""
    probe = f"exec 3<>/dev/tcp/{hosts.addresses[host]}/22 && read -t 5 -u 3 line"
    return hosts.run(CTL, ["bash", "-c", probe]).returncode == 0


def wrap(folder: Path, config: Path) -> None:
    """Put programs into the folder that call the real ones with the configuration."""
    for name in ("ssh", "scp", "sftp"):
        if real := shutil.which(name):
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {real} -F {config} "$@"\n')
            script.chmod(0o755)
