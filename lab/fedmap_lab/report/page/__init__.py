"""The report as one page, and as tables.

In: facts, figures.
Out: HTML, CSV.
May import: report.figures and below.
"""
