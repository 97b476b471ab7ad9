"""Who signed what: certificates, signatures, chains of hashes, signed files.

In: keys, certificates, bytes to sign or to check.
Out: verdicts, signed bytes.
May import: process and below.
"""
