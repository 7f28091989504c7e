"""Ready-made training: what each rank runs for a job that names a model and a dataset."""
