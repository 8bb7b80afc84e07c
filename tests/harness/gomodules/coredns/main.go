// coredns answers the names of a cluster's services and of nothing else: no plugin that forwards a question is in it, so
// that nothing a pod asks for leaves the machine.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	dnsserver.Directives = []string{"errors", "kubernetes", "template"}
	coremain.Run()
}
