#!/bin/bash
# Entry point for Spark on Kubernetes: `driver ...`, `executor`, or any command of the user. It writes nothing, so the root file
# system may be read-only. tini reaps orphaned Python workers and forwards signals.
set -eu

classpath="$SPARK_HOME/jars/*"
[ -z "${SPARK_EXTRA_CLASSPATH:-}" ] || classpath="$SPARK_EXTRA_CLASSPATH:$classpath"
[ -z "${SPARK_CONF_DIR:-}" ] || classpath="$SPARK_CONF_DIR:$classpath"
[ -z "${HADOOP_CONF_DIR:-}" ] || classpath="$HADOOP_CONF_DIR:$classpath"

case "${1:-}" in
driver)
    shift
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    # Spark numbers the options that it passes; their order is that of the numbers.
    options=()
    while IFS= read -r name; do
        [ -z "$name" ] || options+=("${!name}")
    done <<<"$(compgen -v SPARK_JAVA_OPT_ | sort -t_ -k4 -n)"
    exec tini -s -- "$JAVA_HOME/bin/java" "${options[@]}" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec tini -s -- "$@"
    ;;
esac
