"""A node’s half: a site with its rows and policy, by the agent’s own stages.

In: orders.
Out: answers through the site’s own gate.
May import: records.
"""
