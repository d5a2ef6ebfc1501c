"""What users import: the async and the sync API."""
