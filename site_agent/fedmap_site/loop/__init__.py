"""The run loop: ask, do, send, stop at once; rounds as files; the dry run.

In: tasks.
Out: sent answers, status.
May import: upkeep and below.
"""
