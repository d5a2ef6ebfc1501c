"""One queue in memory: order, leases, groups, delays and expiry. Pure: no clock, no I/O."""
