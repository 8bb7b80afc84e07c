"""`kubectl sparkonce`: the plugin and its way to the gateway."""
