"""Users, roles, permissions and SCRAM."""
