"""From a site's file to a checked `SiteDataset`.

`loading` is the pipeline; `table` reads and converts, `rules` drop rows, `features` and `outcome` check and
encode, `split` divides. pandas stays inside this package.

In: a file, a plan.
Out: `SiteDataset`; faults that name a column and a count, never a row.
May import: data.table, data.rules, scoring and below.
"""
