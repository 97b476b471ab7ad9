"""One file as checked columns.

In: a CSV or Parquet file.
Out: typed columns, faults by column and count, `SiteDataset`.
May import: scoring and below.
"""
