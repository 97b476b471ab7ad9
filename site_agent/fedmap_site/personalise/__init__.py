"""T2: a model of one’s own from a bundle, and whether it helped.

In: a verified bundle, a local file.
Out: a model, a report.
May import: predict and below.
"""
