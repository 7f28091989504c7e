"""This host: the identity of processes and their descendants, sockets and ports, signals and
timers, devices, shared memory.

Imports nothing of the other rooms of launch but the names of variables.
"""
