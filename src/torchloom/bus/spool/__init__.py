"""Records on disk until the weaver has them: `spool` is the whole, `incarnation` one part."""
