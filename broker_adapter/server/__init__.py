"""The broker of one node put together of its parts, and what it shows of itself."""
