"""Code generated from proto/ by `make proto`. Nobody edits it.

In: protobuf bytes.
Out: messages and stubs.
May import: nothing of ours.
"""
