"""Local MAP estimation: batches, Adam, early stopping, and what holds a fit in a round.

In: examples of sites, a prior, settings.
Out: `LocalFit` or `FailedFit` for each site.
May import: algorithm.prior and below.
"""
