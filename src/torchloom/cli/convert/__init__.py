"""Turn a plain training loop into one that uses torchLoom's API, by edits of its text.

A program comes in as text; a plan comes out: the new text, notes for its author, or the lines that
are not understood and why. Nothing is imported or run. Read `conversion.py` first: it asks
`limits` what is refused, `training` what the parts are, and writes by `source`'s edits.
"""
