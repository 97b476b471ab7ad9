"""The schema's history: one module per revision in `versions`, applied by the module `schema` beside it.

In: a database of any earlier version.
Out: one of this version.
May import: nothing but SQLAlchemy and Alembic.
"""
