"""Many methods on one cohort, fairly: the same splits, first models, budgets and number of tuning trials.

What the tables can say is `statistics`. Whoever reports or tests afterwards (`report`) reads the tables, the
description and the kept models, nothing else.

In: a plan, a cohort directory, names of methods.
Out: a folder of records and tables.
May import: statistics and below.
"""
