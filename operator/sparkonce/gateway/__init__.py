"""The HTTP gateway: how drivers reach the ledger from their pods, and how people and programs reach keys without reaching etcd."""
