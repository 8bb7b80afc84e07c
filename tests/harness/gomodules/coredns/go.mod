// One requirement; all others follow from it, and go verifies them.
module coredns

go 1.24.0

require (
	github.com/coredns/coredns v1.12.4
)
