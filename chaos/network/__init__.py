"""The network between nodes, hurt link by link: proxies on loopback."""
