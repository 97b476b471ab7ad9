"""Version 1 of the contract.

In: protobuf bytes.
Out: messages and stubs.
May import: nothing of ours.
"""
