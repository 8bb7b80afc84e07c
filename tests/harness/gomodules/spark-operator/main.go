// spark-operator is the controller of kubeflow's Spark operator: its own command, unchanged. It is built here because
// `go install` refuses a module that replaces others, as this one does.
package main

import (
	"fmt"
	"os"

	"github.com/kubeflow/spark-operator/v2/cmd/operator/controller"
	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{Use: "spark-operator", SilenceUsage: true}
	root.AddCommand(controller.NewCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
