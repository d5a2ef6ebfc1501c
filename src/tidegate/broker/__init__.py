"""The broker: a node, its sessions, its queues, and the parts that serve them."""
