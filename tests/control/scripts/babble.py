"""Send the bytes of a file to an agent's socket and wait until it has heard them or hung up."""

import socket
import sys
import time

path, heard = sys.argv[1:3]
for line in open(path):  # noqa: SIM115
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(heard)
        channel.settimeout(0.2)
        try:
            channel.sendall(bytes.fromhex(line))
            channel.shutdown(socket.SHUT_WR)
            while channel.recv(65536):
                pass
        except OSError:  # it has hung up, or has nothing to say
            time.sleep(0.01)
