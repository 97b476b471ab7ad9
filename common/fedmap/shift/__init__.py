"""Does a site look like the federation? Terms of a site, the pooled reference, and the comparison.

In: terms of sites; rows of another site.
Out: a pooled reference; a verdict with its reasons.
May import: shift.told and below.
"""
