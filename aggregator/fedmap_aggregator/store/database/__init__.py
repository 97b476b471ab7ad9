"""SQLite or PostgreSQL behind one engine: tables, migrations, faults in words.

In: a database URL.
Out: transactions.
May import: config.
"""
