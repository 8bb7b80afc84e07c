"""Starts, observes and stops the application of an attempt: `protocol`, `local` (spark-submit), `kubeflow` (SparkApplications)."""
