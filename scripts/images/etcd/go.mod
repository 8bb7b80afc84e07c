// The release of etcd in the image. The programs are etcd's own commands; nothing of ours is compiled. The rest follows from these
// lines (minimal version selection), and go verifies what it downloads.
module etcd

go 1.24.0

require (
	go.etcd.io/etcd/etcdctl/v3 v3.6.4
	go.etcd.io/etcd/etcdutl/v3 v3.6.4
	go.etcd.io/etcd/server/v3 v3.6.4
)

tool (
	go.etcd.io/etcd/etcdctl/v3
	go.etcd.io/etcd/etcdutl/v3
	go.etcd.io/etcd/server/v3
)
