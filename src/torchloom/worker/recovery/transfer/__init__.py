"""Move a member's state to others, checked at both ends: `moves` is the entry."""
