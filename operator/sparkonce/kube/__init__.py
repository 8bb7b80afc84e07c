"""What sparkonce is to a Kubernetes API server: a client, watches, a trigger, the writer of statuses and events."""
