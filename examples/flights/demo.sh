#!/bin/sh
# A month of flights, requested twice: the first time Spark runs, the second time the ledger answers. `make demo` calls it.
#
# It writes only to examples/flights/data: raw CSV files, the ledger with the logs of the attempts, the tables. A second
# `make demo` therefore finds the job done and replays it both times; `make demo FRESH=1` deletes everything but the raw data.
set -eu
cd "$(dirname "$0")/../.."

EXAMPLE=examples/flights
DATA=$EXAMPLE/data
LEDGER=$DATA/ledger.db
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

if [ -n "${FRESH:-}" ]; then
    # The table is deleted with the ledger: with a new ledger and the old table, the month would be found committed and nothing would run.
    rm -rf "$DATA/lake" "$LEDGER" "$LEDGER"[-.]*
fi

milliseconds() { date +%s%3N; } # GNU date

# Sends the job; its answer is also left in $answer.
send() {
    set -- run $EXAMPLE/load-month.yaml --param month=01 --store $LEDGER
    printf '\n$ sparkonce %s\n' "$*"
    begin=$(milliseconds)
    if .venv/bin/sparkonce "$@" >"$answer"; then code=0; else code=$?; fi
    took=$(($(milliseconds) - begin))
    cat "$answer"
    printf '(exit code %d after %d.%03d s)\n' $code $((took / 1000)) $((took % 1000))
    return $code
}

.venv/bin/python $EXAMPLE/prepare.py

send
if grep -q '^replayed' "$answer"; then
    echo "An earlier demo has run this job: this was its recorded result. 'make demo FRESH=1' starts anew."
fi

send
grep -q '^replayed' "$answer" || {
    echo "demo: the second answer should have been a replay, and was not" >&2
    exit 1
}

echo
.venv/bin/python $EXAMPLE/show.py

printf '\nAll of this lies in %s. What the ledger knows: .venv/bin/sparkonce keys list --store %s\n' $DATA $LEDGER
cat <<'END'
Next, on Kubernetes: 'make cluster-demo' runs the same pipeline in a cluster of its own. On yours:
helm install sparkonce charts/sparkonce --namespace sparkonce --create-namespace --set etcd.bundled.enabled=true
kubectl sparkonce list --gateway-namespace sparkonce
Images: docs/helm.md. The jobs: examples/kubernetes/README.md. Rights of kubectl sparkonce: docs/kubernetes-cli.md.
END
