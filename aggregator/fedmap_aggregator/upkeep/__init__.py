"""Backup, restore, deletion.

In: the state folder.
Out: one file with everything, and back; certificates of deletion.
May import: release and below.
"""
