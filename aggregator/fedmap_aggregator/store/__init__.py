"""The aggregator’s state on disk: rows, and tensors as files named by digest.

In: rows and bytes.
Out: the same, whole or absent.
May import: store.database and below.
"""

from fedmap_aggregator.store.blobs import BlobStore
from fedmap_aggregator.store.database.schema import SchemaState, SchemaStatus, schema_status
from fedmap_aggregator.store.database.url import read_url
from fedmap_aggregator.store.rows import (
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
from fedmap_aggregator.store.store import Prepared, Store, Transaction

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
