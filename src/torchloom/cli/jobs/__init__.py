"""What verbs that look at jobs or change them have in common: shapes, logs, stacks, commands to
running jobs, jobs of other engines and of planes elsewhere.

Read `job_shapes` first.
"""
