"""The aggregator's state on disk: rows in SQLite or PostgreSQL, tensors as files named by digest."""

from aggregator.blobs import BlobStore

from .database_url import read_url
from .rows import (
    FINAL,
    AnswerRow,
    AnswerStatus,
    AuditHead,
    BundleRow,
    CertificateRow,
    DeletionRow,
    InvitationRow,
    LinkRow,
    RefusalRow,
    ResultRow,
    SiteRow,
    SiteState,
    StudyRow,
)
from .schema import SchemaState, SchemaStatus, schema_status
from .store import Prepared, Store, Transaction

__all__ = [
    "FINAL",
    "AnswerRow",
    "AnswerStatus",
    "AuditHead",
    "BlobStore",
    "BundleRow",
    "CertificateRow",
    "DeletionRow",
    "InvitationRow",
    "LinkRow",
    "Prepared",
    "RefusalRow",
    "ResultRow",
    "SchemaState",
    "SchemaStatus",
    "SiteRow",
    "SiteState",
    "Store",
    "StudyRow",
    "Transaction",
    "read_url",
    "schema_status",
]
