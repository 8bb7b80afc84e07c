"""Commands that run until a signal: operator, gateway, proxy."""
