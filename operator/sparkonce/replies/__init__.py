"""The ledger of HTTP answers: one request with an `Idempotency-Key` runs once, and every repetition gets its answer."""
