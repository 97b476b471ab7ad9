"""`fedmap-site`: one file for each group of commands.

In: arguments.
Out: words, JSON, exit codes.
May import: everything below.
"""
