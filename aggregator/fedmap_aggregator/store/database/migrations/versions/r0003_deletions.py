"""What was deleted of ended studies, from its beginning to the signed certificate."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    op.create_table(
        "deletions",
        sa.Column("study", sa.Text, sa.ForeignKey("studies.name"), primary_key=True),
        sa.Column("begun_at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("listing_json", sa.Text, nullable=False),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("finished_at", sa.BigInteger),
    )
