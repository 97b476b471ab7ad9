"""The sites of a simulation in memory, and the engines that fit them.

In: a plan, a cohort directory.
Out: datasets of sites, fits.
May import: cohorts and below.
"""
