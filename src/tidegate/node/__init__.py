"""A broker process: server, sessions, ownership, dispatch."""
