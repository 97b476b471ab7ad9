"""The first schema: sites, invitations, certificates, studies, answers, results, refusals, audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None

TIERS = "tier IN (1, 2, 3)"


def upgrade() -> None:
    _identities()
    _studies()
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_unix_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail_json", sa.Text, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
    )


def _identities() -> None:
    op.create_table(
        "sites",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("tier", sa.Integer, nullable=False),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("software_version", sa.Text, nullable=False),
        sa.CheckConstraint(TIERS, name="tier"),
        sa.CheckConstraint("state IN ('invited', 'active', 'revoked')", name="state"),
    )
    op.create_table(
        "invitations",
        sa.Column("token_hash", sa.Text, primary_key=True),
        sa.Column("site", sa.Text, sa.ForeignKey("sites.name"), nullable=False, index=True),
        sa.Column("tier", sa.Integer, nullable=False),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger),
        sa.Column("withdrawn_at", sa.BigInteger),
        sa.CheckConstraint(TIERS, name="tier"),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("not_before", sa.BigInteger, nullable=False),
        sa.Column("not_after", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_index(None, "certificates", ["role", "name"])


def _studies() -> None:
    op.create_table(
        "studies",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("terms_json", sa.Text, nullable=False),
        sa.Column("terms_digest", sa.Text, nullable=False),
        sa.Column("state_json", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "answers",
        _counting_key(),
        _study(),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("site", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
        sa.Column("tensors_digest", sa.Text, nullable=False),
        sa.Column("norm", sa.Float(53)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.CheckConstraint("status IN ('accepted', 'abstained', 'failed', 'rejected')", name="status"),
        sa.UniqueConstraint("study", "task", "site", "digest"),
    )
    op.create_table(
        "results",
        _counting_key(),
        _study(),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("prior_digest", sa.Text, nullable=False),
        sa.Column("content_json", sa.Text, nullable=False),
        sa.Column("closed_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("study", "task"),
    )
    op.create_table(
        "refusals",
        _counting_key(),
        _study(index=True),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("site", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )


def _counting_key() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("seq", kind, primary_key=True, autoincrement=True)


def _study(index: bool = False) -> sa.Column[str]:
    return sa.Column("study", sa.Text, sa.ForeignKey("studies.name"), nullable=False, index=index)
