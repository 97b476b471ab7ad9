"""Version 1 of the contract.

In: protobuf bytes.
Out: messages and values.
May import: nothing of ours.
"""
