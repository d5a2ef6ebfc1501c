"""The systems we are measured against: how each is started, and how each is driven best."""
