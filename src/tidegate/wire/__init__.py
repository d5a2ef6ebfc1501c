"""The binary protocol: bytes in, events out, no sockets."""
