"""A node’s half: only the installed app is run.

In: orders.
Out: answers through the site’s own gate.
May import: records.
"""
