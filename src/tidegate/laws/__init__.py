"""The laws: measurements in, decision out. Pure."""
