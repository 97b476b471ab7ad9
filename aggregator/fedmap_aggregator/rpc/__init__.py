"""One port: gRPC calls to handlers.

In: calls.
Out: answers and statuses.
May import: rpc.handlers and below.
"""
