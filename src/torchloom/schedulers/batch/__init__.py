"""What engines that take a script have in common: Slurm, PBS and LSF.

An app becomes a job folder with a script; read scheduler.py first.
"""
