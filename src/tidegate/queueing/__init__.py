"""One queue in memory, without I/O: lanes, leases, fairness, and the states of a message."""
