"""One plain function for each call; no gRPC in here.

In: a caller and a value.
Out: a value, or an error.
May import: upkeep and below.
"""
