"""One figure a file, or the reason why there is none.

In: facts.
Out: pictures.
May import: report.prior and below.
"""
