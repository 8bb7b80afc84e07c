"""The proof from storage: what stands in outputs and in the ledger, compared by code that took no part in writing either."""
