"""The network between nodes, with per-link impairments: proxies on loopback."""
