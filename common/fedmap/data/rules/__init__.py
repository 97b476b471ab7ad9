"""Rules about rows that only one cohort has.

In: typed columns of a cohort.
Out: rows kept, rows left out with the reason.
May import: data.table and below.
"""
