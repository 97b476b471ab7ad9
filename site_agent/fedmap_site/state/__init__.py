"""What the site keeps of its studies, and its audit log.

In: models, terms, events.
Out: the same after a restart.
May import: identity and below.
"""
