"""Audits outputs and ledger from storage alone, with code that takes no part in writing either."""
