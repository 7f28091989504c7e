"""What `loom export` puts into one file: where it is read, how it is thinned, how it is shown."""
