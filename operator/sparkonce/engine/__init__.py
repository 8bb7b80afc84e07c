"""Deciding and doing: ownership of a key, its attempts, its end."""
