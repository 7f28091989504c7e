"""`loom`: one file a verb, imported when it is used."""
