"""Live control: commands are stored, sent until answered, undone. Read `driver` first."""
