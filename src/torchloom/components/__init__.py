"""Functions that return an AppDef, and how they are found."""
