"""Users, roles, SCRAM, and what who may do."""
