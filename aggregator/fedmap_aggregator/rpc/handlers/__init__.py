"""One plain function for each call; no gRPC in here.

In: a caller and a message.
Out: a message, or an error.
May import: upkeep and below.
"""
