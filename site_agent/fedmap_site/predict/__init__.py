"""T3: files and single rows scored by a bundle, and whether it can be trusted here.

In: a verified bundle, rows.
Out: predictions, the shift report.
May import: bundles and below.
"""
