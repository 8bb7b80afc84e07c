"""The HTTP gateway: the drivers' control channel to the ledger, and access to keys for people and programs without access to etcd."""
