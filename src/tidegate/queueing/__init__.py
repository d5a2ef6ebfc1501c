"""One queue in memory: lifecycle, priorities, leases, credit."""
