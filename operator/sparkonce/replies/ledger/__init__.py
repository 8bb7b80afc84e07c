"""Reply ledgers: the decisions that all of them share, and one module per store."""
