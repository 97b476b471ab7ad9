"""Files that are whole or absent, digests, and tensors in files.

In: bytes, paths, named tensors.
Out: durable files, SHA-256, tensors read strictly.
May import: errors, names.
"""
