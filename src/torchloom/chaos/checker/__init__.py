"""Judge a job that was struck: from `/proc`, files and databases alone, with nothing of ours."""
