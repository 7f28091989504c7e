"""`loom export`: collect the data of runs and write it into one HTML file."""
