"""Synthetic cohorts with known risk structure (`making`, a module for each), and public data sets as cohorts.

A cohort is a directory of `sites.csv`, one file per site and, where it is synthetic, `cohort.json`.

In: a name, a scale, a seed; or public files.
Out: a cohort directory.
May import: wording, eicu, fedmap.
"""
