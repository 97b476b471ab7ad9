"""The next prior, in a process of its own.

In: accepted answers of a round.
Out: prior files, results.
May import: studies and below.
"""
