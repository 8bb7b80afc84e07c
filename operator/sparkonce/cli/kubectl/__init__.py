"""`kubectl sparkonce`: the plugin and its client of the gateway."""
