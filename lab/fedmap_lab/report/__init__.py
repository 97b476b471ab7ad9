"""The report of a comparison: what its tables say, in words, figures and one page that needs nothing else.

    facts      tables, description and models as facts; gains, tests, who gains, equity
    prior      what the prior holds tight, which sites resemble each other, in figures and in words
    figures    one figure or a few of a kind, as PNG and PDF, or the reason why there is none
    page       the opening paragraph, report.html from its template, CSV files
    writing    all of it, in order; explaining: the prior of one simulation alone

One direction, as listed. Nothing here trains or reads patient rows.

In: the folder of a comparison.
Out: report.html with all that it shows.
May import: report.page and below.
"""
