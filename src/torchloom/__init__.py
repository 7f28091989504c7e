"""torchLoom: describe a job once, run it anywhere, watch it, change it, lose nothing."""

__version__ = "0.1.0"
