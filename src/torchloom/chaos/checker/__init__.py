"""Judge a job after faults, from `/proc`, files and databases; imports nothing that it judges."""
