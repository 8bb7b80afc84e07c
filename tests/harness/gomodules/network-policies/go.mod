// One requirement that counts; all others follow from it, and go verifies them.
module network-policies

go 1.24.0

require (
	github.com/cloudnativelabs/kube-router v1.6.1
)
