"""One revision of the schema a file; a revision that was released never changes.

In: the revision before.
Out: the next one.
May import: nothing but SQLAlchemy and Alembic.
"""
