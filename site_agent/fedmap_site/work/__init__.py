"""One task on local rows.

In: a task, a dataset, a prior.
Out: what the exit gate then judges.
May import: data and below.
"""
