"""Agreements: what a service promises, and whether it is kept. Pure.

`document` reads what people write, `evaluation` says met, warned or breached, and what is left of
the error budget. The services that act on it live elsewhere.
"""
