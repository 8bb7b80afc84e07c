// Two requirements; all others follow from them, and go verifies them.
module verdicts

go 1.24.0

require (
	github.com/yuin/gopher-lua v1.1.2
	sigs.k8s.io/cli-utils v0.37.2
)
