// network-policies enforces NetworkPolicies on the pods of one node: the controller of kube-router for them, without its router and
// its service proxy. It writes iptables rules and ipsets into the network namespace that it runs in.
package main

import (
	"flag"
	"log"
	"sync"
	"time"

	"github.com/cloudnativelabs/kube-router/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "of a client that may list pods, namespaces, nodes and policies")
	node := flag.String("node", "", "name of the node")
	services := flag.String("services", "", "network of the cluster's services")
	clean := flag.Bool("clean", false, "remove every rule and set, and end")
	flag.Parse()
	if *clean {
		(&netpol.NetworkPolicyController{}).Cleanup()
		return
	}
	if err := run(*kubeconfig, *node, *services); err != nil {
		log.Fatal(err)
	}
}

func run(kubeconfig, node, services string) error {
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(stop)
	factory.WaitForCacheSync(stop)

	config := options.NewKubeRouterConfig()
	config.HostnameOverride = node
	config.ClusterIPCIDR = services
	config.IPTablesSyncPeriod = time.Minute
	var lock sync.Mutex
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &lock)
	if err != nil {
		return err
	}
	pods.AddEventHandler(controller.PodEventHandler)
	namespaces.AddEventHandler(controller.NamespaceEventHandler)
	policies.AddEventHandler(controller.NetworkPolicyEventHandler)

	beats := make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range beats { // nobody asks how it is
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(beats, stop, &running)
	return nil
}
