"""An answer from its first message to its receipt: every check, and quarantine.

In: an upload.
Out: accepted or rejected, with the reason.
May import: estimation and below.
"""
