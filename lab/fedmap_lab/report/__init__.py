"""The report of a comparison: what its tables say, in words, figures and one page that needs nothing else.

Nothing here trains or reads patient rows.

In: the folder of a comparison.
Out: report.html with all that it shows.
May import: report.page and below.
"""
