"""The door for rows.

In: the hospital’s file, an approved plan.
Out: a checked dataset, counts.
May import: state and below.
"""
