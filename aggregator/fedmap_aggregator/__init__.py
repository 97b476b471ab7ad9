"""The centre: one port, one database, one prior after the other.

In: calls of sites and operators.
Out: tasks, receipts, signed bundles.
May import: fedmap; never the site agent or the lab.
"""
