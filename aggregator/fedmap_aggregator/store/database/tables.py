"""The tables, as SQLAlchemy Core sees them: one definition for SQLite and PostgreSQL.

A change here needs a migration beside it; a test compares the two. All times are Unix milliseconds. Large
things (tensors, priors) are files that a row names by digest, never columns.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

VERSION_TABLE = "fedmap_schema"
"""Where Alembic keeps the revision; a name of our own, should the database be shared."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def counting() -> TypeEngine[int]:
    """A type that both databases count up by themselves; SQLite does that for plain INTEGER only."""
    return BigInteger().with_variant(Integer(), "sqlite")


def storable(text: str) -> str:
    """Text as both take it: sites send what nobody has checked, and PostgreSQL refuses a NUL."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


sites = Table(
    "sites",
    metadata,
    Column("name", Text, primary_key=True),
    Column("tier", Integer, nullable=False),
    Column("region", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("software_version", Text, nullable=False),
    CheckConstraint("tier IN (1, 2, 3)", name="tier"),
    CheckConstraint("state IN ('invited', 'active', 'revoked')", name="state"),
)

invitations = Table(
    "invitations",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("site", Text, ForeignKey("sites.name"), nullable=False, index=True),
    Column("tier", Integer, nullable=False),
    Column("region", Text, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_at", BigInteger),
    Column("withdrawn_at", BigInteger),
    CheckConstraint("tier IN (1, 2, 3)", name="tier"),
)

certificates = Table(
    "certificates",
    metadata,
    Column("serial", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("not_after", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Index(None, "role", "name"),
)

studies = Table(
    "studies",
    metadata,
    Column("name", Text, primary_key=True),
    Column("terms_json", Text, nullable=False),
    Column("terms_digest", Text, nullable=False),
    Column("state_json", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
)

answers = Table(
    "answers",
    metadata,
    Column("seq", counting(), primary_key=True, autoincrement=True),
    Column("study", Text, ForeignKey("studies.name"), nullable=False),
    Column("task", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("tensors_digest", Text, nullable=False),
    Column("norm", Float(53)),
    Column("reason", Text, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    CheckConstraint("status IN ('accepted', 'abstained', 'failed', 'rejected')", name="status"),
    UniqueConstraint("study", "task", "site", "digest"),
)

results = Table(
    "results",
    metadata,
    Column("seq", counting(), primary_key=True, autoincrement=True),
    Column("study", Text, ForeignKey("studies.name"), nullable=False),
    Column("task", Text, nullable=False),
    Column("prior_digest", Text, nullable=False),
    Column("content_json", Text, nullable=False),
    Column("closed_at", BigInteger, nullable=False),
    UniqueConstraint("study", "task"),
)

refusals = Table(
    "refusals",
    metadata,
    Column("seq", counting(), primary_key=True, autoincrement=True),
    Column("study", Text, ForeignKey("studies.name"), nullable=False, index=True),
    Column("task", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

bundles = Table(
    "bundles",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("study", Text, ForeignKey("studies.name"), nullable=False, index=True),
    Column("round", Integer, nullable=False),
    Column("tier", Integer, nullable=False),
    Column("file_digest", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("manifest_digest", Text, nullable=False),
    Column("key_fingerprint", Text, nullable=False),
    Column("released_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("withdrawn_at", BigInteger),
    Column("reason", Text, nullable=False),
    CheckConstraint("tier IN (2, 3)", name="tier"),
)

download_links = Table(
    "download_links",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("spent_at", BigInteger),
    ForeignKeyConstraint(["name", "version"], ["bundles.name", "bundles.version"]),
)

deletions = Table(
    "deletions",
    metadata,
    Column("study", Text, ForeignKey("studies.name"), primary_key=True),
    Column("begun_at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("listing_json", Text, nullable=False),
    Column("certificate", Text, nullable=False),
    Column("finished_at", BigInteger),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_unix_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail_json", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
)
