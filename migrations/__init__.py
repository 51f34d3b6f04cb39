"""Revisions of the database, run by `tuner.store.schema`; installed as `tuner.migrations`."""
