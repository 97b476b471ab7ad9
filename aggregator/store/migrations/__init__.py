"""The schema's history: one module per revision in `versions`, applied by aggregator.store.schema."""
