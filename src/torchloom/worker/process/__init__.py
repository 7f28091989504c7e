"""How a rank's process starts: the zygote, its forks, and the `program` that runs in one."""
