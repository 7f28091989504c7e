"""The agent's other end inside a training process: progress and numbers up, commands down.

Nothing here may cost a step more than a microsecond, make it wait, or end it: whatever breaks,
training goes on.
"""
