"""User code that does not import."""

raise RuntimeError("the price list is missing")
