// kube is one binary that is every part of a Kubernetes cluster: etcd, the API server, the controller manager, the
// scheduler, the kubelet, the proxy and kubectl. The first argument chooses, or the name it is called by.
//
// One binary, because the parts share nearly all their code: it links in a minute where seven link in seven, and is a
// seventh of their size. It is the parts' own commands, unchanged; nothing here knows a flag of theirs.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
	"kube-proxy":              func() { run(proxy.NewProxyCommand()) },
	"kubectl": func() {
		// Its errors are its own to print, in its own way: that is what differs from the servers.
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	},
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

func main() {
	part, ok := parts[filepath.Base(os.Args[0])]
	if !ok && len(os.Args) > 1 {
		part, ok = parts[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "kube: the first argument must name a part: etcd, kube-apiserver, kube-controller-manager,"+
			" kube-scheduler, kubelet, kube-proxy or kubectl")
		os.Exit(2)
	}
	part()
}
