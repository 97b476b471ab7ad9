"""`fedmap-lab`: one file for each group of commands.

In: arguments.
Out: words, JSON, pictures.
May import: everything below.
"""
