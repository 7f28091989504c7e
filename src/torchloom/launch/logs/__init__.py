"""The logs of ranks: where output goes (sinks.py), the files it is written to (files.py), how they
are read (reader.py) and what is printed where a launch was started (display.py).

Read files.py first.
"""
