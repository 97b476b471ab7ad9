"""A whole study in one process, and what is kept of it.

In: a federation, a method.
Out: scores, curves, models, tables.
May import: methods and below.
"""
