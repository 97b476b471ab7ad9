"""Released bundles, and the one-time links by which they are downloaded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"


def upgrade() -> None:
    op.create_table(
        "bundles",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("study", sa.Text, sa.ForeignKey("studies.name"), nullable=False, index=True),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("tier", sa.Integer, nullable=False),
        sa.Column("file_digest", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("manifest_digest", sa.Text, nullable=False),
        sa.Column("key_fingerprint", sa.Text, nullable=False),
        sa.Column("released_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("withdrawn_at", sa.BigInteger),
        sa.Column("reason", sa.Text, nullable=False),
        sa.CheckConstraint("tier IN (2, 3)", name="tier"),
    )
    op.create_table(
        "download_links",
        sa.Column("token_hash", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("made_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("spent_at", sa.BigInteger),
        sa.ForeignKeyConstraint(["name", "version"], ["bundles.name", "bundles.version"]),
    )
