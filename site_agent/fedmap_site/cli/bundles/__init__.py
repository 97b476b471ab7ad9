"""The commands around bundles: fetch, keep, personalise, predict, serve.

In: arguments.
Out: words, JSON, exit codes.
May import: cli.options and below.
"""
