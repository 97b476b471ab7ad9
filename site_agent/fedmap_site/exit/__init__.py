"""The exit gate: nothing leaves but through here.

In: what a task gave.
Out: checked, described, recorded, released items.
May import: data and below.
"""
