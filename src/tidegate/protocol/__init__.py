"""The binary protocol without I/O: bytes in, packets out."""
