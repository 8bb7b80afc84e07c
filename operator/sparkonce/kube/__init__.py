"""The operator on Kubernetes: kopf as a trigger, watches, API client, status and events, and the process that combines them."""
