"""A release as one signed file, and the steps that verify one.

In: a prior with its manifest; a file of unknown origin.
Out: a signed bundle; a verified one.
May import: study and below.
"""
