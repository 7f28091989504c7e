"""What engines that take a script have in common: Slurm, and whatever else is like it."""
