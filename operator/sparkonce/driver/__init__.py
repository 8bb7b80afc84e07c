"""Code that runs inside an attempt: the API of a job (`context`, `stream`), its control channel and heartbeat, and settle runs."""
