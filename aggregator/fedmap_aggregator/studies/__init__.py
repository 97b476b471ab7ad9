"""Running studies: locks, time, who is there, what each site is asked.

In: events.
Out: tasks, status.
May import: identity and below.
"""
