// verdicts reads objects as JSON, one a line, and prints for each what deployment tools make of it: kstatus, which Flux, kpt and Helm
// use, and Argo CD, with the health check whose file is the argument. Argo CD runs such checks in this very interpreter.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type line struct {
	Kstatus verdict `json:"kstatus"`
	ArgoCD  verdict `json:"argocd"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "verdicts:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("usage: verdicts HEALTH.LUA < objects.jsonl")
	}
	script, err := os.ReadFile(arguments[0])
	if err != nil {
		return err
	}
	reader, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		text, err := reader.ReadBytes('\n')
		if len(text) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return err
		}
		said, err := both(object, string(script))
		if err != nil {
			return fmt.Errorf("%s: %w", object.GetName(), err)
		}
		if err := out.Encode(said); err != nil {
			return err
		}
	}
}

func both(object *unstructured.Unstructured, script string) (line, error) {
	computed, err := status.Compute(object)
	if err != nil {
		return line{}, err
	}
	health, err := argocd(object, script)
	return line{verdict{string(computed.Status), computed.Message}, health}, err
}

// argocd runs the script as Argo CD does: the object is the global `obj`, only Lua's harmless libraries are open, and the script returns a
// table with status and message.
func argocd(object *unstructured.Unstructured, script string) (verdict, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(library.open), Protect: true}, lua.LString(library.name)); err != nil {
			return verdict{}, err
		}
	}
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoString(script); err != nil {
		return verdict{}, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return verdict{}, fmt.Errorf("the health check returned %s, not a table", state.Get(-1).Type())
	}
	return verdict{lua.LVAsString(table.RawGetString("status")), lua.LVAsString(table.RawGetString("message"))}, nil
}

func value(state *lua.LState, from any) lua.LValue {
	switch from := from.(type) {
	case string:
		return lua.LString(from)
	case bool:
		return lua.LBool(from)
	case int64:
		return lua.LNumber(from)
	case float64:
		return lua.LNumber(from)
	case []any:
		table := state.NewTable()
		for _, each := range from {
			table.Append(value(state, each))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for name, each := range from {
			table.RawSetString(name, value(state, each))
		}
		return table
	}
	return lua.LNil
}
