"""Many methods on one cohort, fairly: the same splits, first models, budgets and number of tuning trials.

    request    what is asked for, and the digests that make a resumed comparison the same one
    results    what a job leaves, and what a comparison is made of
    trials     the settings that tuning tries
    jobs       one training run of one method: the unit that is done or not
    records    finished jobs on disk, and the folder they live in
    running    the course of a comparison: tune, then run, in processes side by side
    tables     CSV files and the description, made from the records
    summary    one table per tier, for the reader at the terminal

What the tables can say is `statistics`. Whoever reports or tests afterwards (`report`) reads the tables, the
description and the kept models, nothing else.

In: a plan, a cohort directory, names of methods.
Out: a folder of records and tables.
May import: statistics and below.
"""
