"""From a site's file to a checked `SiteDataset`.

`loading` is the pipeline; `table_file` reads, `columns` converts, `cprd` and `interval` drop rows by rule,
`features` and `outcome` check and encode, `split` divides. pandas stays inside this package.
"""
