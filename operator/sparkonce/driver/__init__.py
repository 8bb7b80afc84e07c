"""What runs inside an attempt: the job's face, its control channel, settle runs."""
