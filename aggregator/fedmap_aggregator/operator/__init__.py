"""Leading studies from anywhere: the client of the operator’s calls, and what is shown of the answers.

In: a profile, answers.
Out: tables, JSON.
May import: rpc and below.
"""
