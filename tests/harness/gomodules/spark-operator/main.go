// spark-operator is the controller and the webhook of kubeflow's Spark operator: its own commands, unchanged. They are built
// here because `go install` refuses a module that replaces others, as this one does.
package main

import (
	"fmt"
	"os"

	"github.com/kubeflow/spark-operator/v2/cmd/operator/controller"
	"github.com/kubeflow/spark-operator/v2/cmd/operator/webhook"
	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{Use: "spark-operator", SilenceUsage: true}
	root.AddCommand(controller.NewCommand(), webhook.NewCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
