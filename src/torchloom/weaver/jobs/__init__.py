"""Jobs: submitted, queued, placed, launched, reported on, removed. Read `registry` first."""
