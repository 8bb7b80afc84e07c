"""Attempts as SparkApplications of the Kubeflow Spark operator: `spec` builds them, `launcher` starts, observes and stops them."""
