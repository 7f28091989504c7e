"""What a rank needs to go on when another one dies: its pages, leaving, joining, taking a state."""
