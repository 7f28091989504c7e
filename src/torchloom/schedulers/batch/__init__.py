"""What engines that take a script have in common: Slurm, PBS and LSF."""
