"""Deletion and retention of what a site keeps.

In: a study’s name.
Out: a certificate of deletion.
May import: exit and below.
"""
