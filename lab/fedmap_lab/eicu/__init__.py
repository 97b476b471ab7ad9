"""The raw eICU tables as one row a stay.

In: PhysioNet’s tables.
Out: a table for each site, a frozen vocabulary.
May import: fedmap.
"""
