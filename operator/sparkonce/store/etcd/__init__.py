"""Records in etcd, the default on a cluster."""
