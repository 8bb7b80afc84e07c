{{/* Names, labels, and blocks that several templates share. */}}

{{- define "sparkonce.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters: the longest name made from it, that of an etcd pod, still fits a label. */}}
{{- define "sparkonce.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "sparkonce.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "sparkonce.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of cluster-wide objects. It contains the namespace, so that two releases of one name do not collide. */}}
{{- define "sparkonce.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "sparkonce.fullname" .) }}
{{- end }}

{{- define "sparkonce.install" -}}
{{- default (printf "%s.%s" .Release.Namespace .Release.Name) .Values.install }}
{{- end }}

{{/* Called with (list . "component"). */}}
{{- define "sparkonce.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ include "sparkonce.name" $top }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/*
Called with (list . "component"), optionally followed by labels for this object, which override commonLabels. Selectors use none of these,
since a workload's selector cannot be changed.
*/}}
{{- define "sparkonce.labels" -}}
{{- $top := index . 0 -}}
{{ include "sparkonce.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sparkonce
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name ($top.Chart.Version | replace "+" "_") }}
{{- $more := $top.Values.commonLabels | default dict | deepCopy }}
{{- range rest (rest .) }}
{{- $more = mergeOverwrite $more (deepCopy (. | default dict)) }}
{{- end }}
{{- with $more }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Called with (list . image). image.registry is used for every image without a registry of its own. */}}
{{- define "sparkonce.image" -}}
{{- $top := index . 0 }}{{ $image := index . 1 -}}
{{- with $image.registry | default $top.Values.image.registry }}{{ . }}/{{ end }}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $top.Chart.AppVersion $image.tag }}
{{- end }}
{{- end }}

{{- define "sparkonce.operatorAccount" -}}
{{- default (printf "%s-operator" (include "sparkonce.fullname" .)) .Values.operator.serviceAccount.name }}
{{- end }}

{{- define "sparkonce.gatewayAccount" -}}
{{- default (printf "%s-gateway" (include "sparkonce.fullname" .)) .Values.gateway.serviceAccount.name }}
{{- end }}

{{/* Name of the Secret with the gateway's certificate; empty if it serves plain HTTP. Values of earlier charts have no `enabled`. */}}
{{- define "sparkonce.gatewaySecret" -}}
{{- if .Values.gateway.tls.secretName }}
{{- .Values.gateway.tls.secretName }}
{{- else if dig "enabled" true .Values.gateway.tls }}
{{- printf "%s-gateway-tls" (include "sparkonce.fullname" .) }}
{{- end }}
{{- end }}

{{/* Key of the CA in that Secret; empty if images already trust it. */}}
{{- define "sparkonce.gatewayCaKey" -}}
{{- if .Values.gateway.tls.secretName }}
{{- .Values.gateway.tls.caKey }}
{{- else if include "sparkonce.gatewaySecret" . }}
{{- "ca.crt" }}
{{- end }}
{{- end }}

{{/* Names in the certificate: those of the Service, localhost for a port-forward, and the host of a TLSRoute, which passes TLS through. */}}
{{- define "sparkonce.gatewayHosts" -}}
{{- $name := printf "%s-gateway" (include "sparkonce.fullname" .) }}
{{- $full := printf "%s.%s.svc" $name .Release.Namespace }}
{{- $hosts := list $full (printf "%s.cluster.local" $full) (printf "%s.%s" $name .Release.Namespace) $name "localhost" }}
{{- with (include "sparkonce.public" . | fromJson) }}{{ if eq .kind "TLSRoute" }}{{ $hosts = append $hosts .host }}{{ end }}{{ end }}
{{- $hosts | toJson }}
{{- end }}

{{/*
The gateway's address outside the cluster as JSON: {kind, host, url}, kind being that of the object which leads to it; {} if there is none.
Values of earlier charts have none of this (`helm upgrade --reuse-values`).
*/}}
{{- define "sparkonce.public" -}}
{{- $gateway := .Values.gateway }}
{{- $kinds := dict "ingress" "Ingress" "httpRoute" "HTTPRoute" "tlsRoute" "TLSRoute" }}
{{- $named := list }}
{{- range $name := keys $kinds | sortAlpha }}{{ if dig $name "enabled" false $gateway }}{{ $named = append $named $name }}{{ end }}{{ end }}
{{- if and $gateway.enabled $named }}
{{- $name := first $named }}
{{- $host := dig "public" "host" "" $gateway }}
{{- $tls := include "sparkonce.gatewaySecret" . }}
{{- if gt (len $named) 1 }}
{{- fail (printf "gateway.%s are all enabled: the gateway has one address outside the cluster, enable one of them" (join " and gateway." $named)) }}
{{- else if not $host }}
{{- fail (printf "gateway.%s.enabled needs gateway.public.host, the name under which people reach the gateway" $name) }}
{{- else if and (ne $name "ingress") (not (dig $name "parentRefs" list $gateway)) }}
{{- fail (printf "gateway.%s.enabled needs gateway.%s.parentRefs: name, namespace and sectionName (the listener) of your Gateway" $name $name) }}
{{- else if and (not $tls) (eq $name "tlsRoute") }}
{{- fail "gateway.tlsRoute passes TLS on to the gateway, which serves none: set gateway.tls.enabled=true, or use gateway.httpRoute" }}
{{- else if and (not $tls) (not .Values.acceptInsecure) }}
{{- fail (printf "with gateway.tls.enabled=false tokens go in plain text from the controller of gateway.%s to the gateway: leave it at true, or set acceptInsecure=true" $name) }}
{{- end }}
{{- $port := dig "public" "port" 443 $gateway | int }}
{{- $url := printf "https://%s" $host }}
{{- dict "kind" (get $kinds $name) "host" $host "url" (ternary $url (printf "%s:%d" $url $port) (eq $port 443)) | toJson }}
{{- else }}{{ dict | toJson }}
{{- end }}
{{- end }}

{{/* gateway.clientCertificates as JSON, complete and checked; {} if they are not taken. */}}
{{- define "sparkonce.clientCertificates" -}}
{{- $given := dig "clientCertificates" dict .Values.gateway }}
{{- if and .Values.gateway.enabled $given.enabled }}
{{- if not (include "sparkonce.gatewaySecret" .) }}
{{- fail "gateway.clientCertificates needs TLS at the gateway: set gateway.tls.enabled=true" }}
{{- else if eq (empty $given.ca) (empty $given.secretName) }}
{{- fail "gateway.clientCertificates.enabled needs the CA that signs people's certificates: set either gateway.clientCertificates.ca or gateway.clientCertificates.secretName" }}
{{- end }}
{{- dict "ca" ($given.ca | default "") "secretName" ($given.secretName | default "") "key" (ternary ($given.caKey | default "ca.crt") "ca.crt" (empty $given.ca)) | toJson }}
{{- else }}{{ dict | toJson }}
{{- end }}
{{- end }}

{{- define "sparkonce.gatewayUrl" -}}
{{- printf "%s://%s-gateway.%s.svc:%d" (ternary "https" "http" (ne (include "sparkonce.gatewaySecret" .) "")) (include "sparkonce.fullname" .) .Release.Namespace (int .Values.gateway.port) }}
{{- end }}

{{/*
`proxy` as JSON, complete and checked; {} if it is disabled. Values of earlier charts have none of it (`helm upgrade --reuse-values`), so the
defaults of values.yaml that are not empty are here, too.
*/}}
{{- define "sparkonce.proxy" -}}
{{- if (.Values.proxy).enabled }}
{{- $usual := dict "upstream" "" "upstreamCa" (dict "secretName" "" "configMapName" "" "key" "ca.crt") "timeoutSeconds" 60 "replicas" 2 "port" 8080 }}
{{- $usual = merge $usual (dict "tls" (dict "secretName" "") "store" (dict "existingSecret" "" "urlKey" "url") "podSecurityContext" dict) }}
{{- $usual = merge $usual (dict "drainSeconds" 5 "terminationGracePeriodSeconds" 70 "podDisruptionBudget" true "serviceAccount" (dict "create" true)) }}
{{- $requests := dict "cpu" "100m" "memory" "192Mi" "ephemeral-storage" "128Mi" }}
{{- $_ := set $usual "resources" (dict "requests" $requests "limits" (dict "memory" "512Mi" "ephemeral-storage" "1Gi")) }}
{{- $_ := set $usual "topologySpread" (dict "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway") }}
{{- $proxy := mergeOverwrite $usual (deepCopy .Values.proxy) }}
{{- $named := or $proxy.upstreamCa.secretName $proxy.upstreamCa.configMapName }}
{{- $least := addf $proxy.drainSeconds 60 }}
{{- if not $proxy.upstream }}
{{- fail "proxy.enabled needs proxy.upstream, the service or catalog behind the proxy: http(s)://HOST[:PORT][/PATH]" }}
{{- else if and $proxy.upstreamCa.secretName $proxy.upstreamCa.configMapName }}
{{- fail "proxy.upstreamCa.secretName and proxy.upstreamCa.configMapName are both set: the CA is in one of them, leave the other out" }}
{{- else if and $named (not (hasPrefix "https://" $proxy.upstream)) }}
{{- fail (printf "proxy.upstreamCa is for an https upstream, and proxy.upstream is %s: requests would go in plain text" $proxy.upstream) }}
{{- else if eq (int $proxy.port) 8081 }}
{{- fail "proxy.port=8081 is the port of the proxy's probes and metrics: choose another" }}
{{- else if lt (float64 $proxy.terminationGracePeriodSeconds) $least }}
{{- fail (printf "proxy.terminationGracePeriodSeconds=%v would kill the proxy while requests are in flight, whose outcome is then unknown: set at least %v, which is proxy.drainSeconds plus 60 for those requests and the ledger" $proxy.terminationGracePeriodSeconds $least) }}
{{- end }}
{{- $proxy | toJson }}
{{- else }}{{ dict | toJson }}
{{- end }}
{{- end }}

{{- define "sparkonce.proxyAccount" -}}
{{- default (printf "%s-proxy" (include "sparkonce.fullname" .)) (include "sparkonce.proxy" . | fromJson).serviceAccount.name }}
{{- end }}

{{- define "sparkonce.proxyUrl" -}}
{{- $proxy := include "sparkonce.proxy" . | fromJson }}
{{- printf "%s://%s-proxy.%s.svc:%d" (ternary "https" "http" (ne $proxy.tls.secretName "")) (include "sparkonce.fullname" .) .Release.Namespace (int $proxy.port) }}
{{- end }}

{{- define "sparkonce.etcdName" -}}
{{- printf "%s-etcd" (include "sparkonce.fullname" .) }}
{{- end }}

{{/* etcd.bundled.tls as JSON, with all fields: values of earlier charts have none of them (`helm upgrade --reuse-values`). */}}
{{- define "sparkonce.etcdTls" -}}
{{- $usual := dict "enabled" true "secretName" "" "clientSecretName" "" "certManager" (dict "enabled" false) }}
{{- mergeOverwrite $usual (dig "tls" dict .Values.etcd.bundled | default dict | deepCopy) | toJson }}
{{- end }}

{{/* Secrets with the certificates of the bundled etcd's members and of its clients. */}}
{{- define "sparkonce.etcdSecret" -}}
{{- default (printf "%s-members" (include "sparkonce.etcdName" .)) (include "sparkonce.etcdTls" . | fromJson).secretName }}
{{- end }}

{{- define "sparkonce.etcdClientSecret" -}}
{{- default (printf "%s-client" (include "sparkonce.etcdName" .)) (include "sparkonce.etcdTls" . | fromJson).clientSecretName }}
{{- end }}

{{/* `postgresql` as JSON, complete: values of earlier charts have none of it. */}}
{{- define "sparkonce.postgresql" -}}
{{- $usual := dict "existingSecret" "" "urlKey" "url" "tls" (dict "mode" "verify-full" "secretName" "" "clientCertificate" false) "pool" 8 "timeoutSeconds" 2 }}
{{- mergeOverwrite $usual (.Values.postgresql | default dict | deepCopy) | toJson }}
{{- end }}

{{/* One sentence on how others could read or change the ledger; empty if the chart knows of no way. */}}
{{- define "sparkonce.exposed" -}}
{{- $external := .Values.etcd.external }}
{{- $postgresql := include "sparkonce.postgresql" . | fromJson }}
{{- if $postgresql.existingSecret }}
{{- if not (has $postgresql.tls.mode (list "verify-full" "verify-ca")) -}}
with postgresql.tls.mode={{ $postgresql.tls.mode }} another server may pretend to be the ledger: set postgresql.tls.mode=verify-full (with your own CA in postgresql.tls.secretName), or set acceptInsecure=true
{{- end }}
{{- else if .Values.etcd.bundled.enabled }}
{{- if not (include "sparkonce.etcdTls" . | fromJson).enabled -}}
with etcd.bundled.tls.enabled=false whoever reaches the bundled etcd may read and change the ledger: leave it at true, or set acceptInsecure=true
{{- end }}
{{- else if $external.endpoints }}
{{- if not $external.tls.enabled -}}
with etcd.external.tls.enabled=false the ledger goes over the network in plain text: set etcd.external.tls.enabled=true (with your own CA in etcd.external.tls.secretName), or set acceptInsecure=true
{{- else if not (or $external.tls.clientCertificate $external.auth.user) -}}
an etcd that lets this release in without a certificate or a user lets in whoever reaches it: set etcd.external.tls.clientCertificate=true or etcd.external.auth.user, or set acceptInsecure=true
{{- end }}
{{- end }}
{{- end }}

{{/* URL of the store: the external endpoints, or every member of the bundled etcd. Empty: it is in a Secret, and of a PostgreSQL. */}}
{{- define "sparkonce.store" -}}
{{- $external := .Values.etcd.external }}
{{- $postgresql := include "sparkonce.postgresql" . | fromJson }}
{{- if and $postgresql.existingSecret (or .Values.etcd.bundled.enabled $external.endpoints) }}
{{- fail "postgresql.existingSecret and an etcd are both set: the ledger is in one of them, leave etcd.bundled.enabled and etcd.external.endpoints out" }}
{{- end }}
{{- if and .Values.etcd.bundled.enabled $external.endpoints }}
{{- fail "etcd.external.endpoints and etcd.bundled.enabled are both set: the ledger is in one of them, leave the other out" }}
{{- end }}
{{- $exposed := include "sparkonce.exposed" . }}
{{- if and $exposed (not .Values.acceptInsecure) }}
{{- fail $exposed }}
{{- end }}
{{- if $postgresql.existingSecret }}
{{- if and $postgresql.tls.clientCertificate (not $postgresql.tls.secretName) }}
{{- fail "postgresql.tls.clientCertificate needs postgresql.tls.secretName: a Secret with ca.crt, tls.crt and tls.key" }}
{{- end }}
{{- else if .Values.etcd.bundled.enabled }}
{{- $tls := include "sparkonce.etcdTls" . | fromJson }}
{{- if ne (empty $tls.secretName) (empty $tls.clientSecretName) }}
{{- fail "etcd.bundled.tls.secretName and etcd.bundled.tls.clientSecretName belong together: name both Secrets, or neither" }}
{{- else if and $tls.certManager.enabled $tls.secretName }}
{{- fail "etcd.bundled.tls.certManager.enabled and etcd.bundled.tls.secretName are both set: cert-manager makes the Secrets, leave their names out" }}
{{- end }}
{{- $members := list }}
{{- range $each := until (int .Values.etcd.bundled.replicas) }}
{{- $members = append $members (printf "%s-%d.%s.%s.svc:2379" (include "sparkonce.etcdName" $) $each (include "sparkonce.etcdName" $) $.Release.Namespace) }}
{{- end }}
{{- $options := list (printf "quota=%d" (int64 .Values.etcd.bundled.quotaBytes)) }}
{{- if $tls.enabled }}
{{- $options = concat $options (list "ca=/etc/sparkonce/etcd/ca.crt" "cert=/etc/sparkonce/etcd/tls.crt" "key=/etc/sparkonce/etcd/tls.key") }}
{{- end }}
{{- printf "etcd://%s?%s" (join "," $members) (join "&" $options) }}
{{- else if $external.endpoints }}
{{- $options := list (printf "timeout=%v" $external.timeoutSeconds) }}
{{- if $external.tls.enabled }}
{{- if $external.tls.secretName }}
{{- $options = append $options "ca=/etc/sparkonce/etcd/ca.crt" }}
{{- else }}
{{- $options = append $options "tls=true" }}
{{- end }}
{{- if $external.tls.clientCertificate }}
{{- if not $external.tls.secretName }}
{{- fail "etcd.external.tls.clientCertificate needs etcd.external.tls.secretName: a Secret with ca.crt, tls.crt and tls.key" }}
{{- end }}
{{- $options = concat $options (list "cert=/etc/sparkonce/etcd/tls.crt" "key=/etc/sparkonce/etcd/tls.key") }}
{{- end }}
{{- with $external.tls.serverName }}
{{- $options = append $options (printf "server-name=%s" .) }}
{{- end }}
{{- end }}
{{- if $external.auth.user }}
{{- if not $external.auth.passwordSecret.name }}
{{- fail "etcd.external.auth.user needs etcd.external.auth.passwordSecret.name: a Secret with the user's password" }}
{{- end }}
{{- $options = append $options (printf "user=%s" ($external.auth.user | urlquery)) }}
{{- end }}
{{- with $external.quotaBytes }}
{{- $options = append $options (printf "quota=%d" (int64 .)) }}
{{- end }}
{{- printf "etcd://%s?%s" (join "," $external.endpoints) (join "&" $options) }}
{{- else }}
{{- fail "the ledger needs an etcd or a PostgreSQL: set etcd.external.endpoints to yours, or etcd.bundled.enabled=true to start one with this release, or postgresql.existingSecret" }}
{{- end }}
{{- end }}

{{/* Environment of every container that connects to the store. */}}
{{- define "sparkonce.storeEnv" -}}
{{- $url := include "sparkonce.store" . }}
{{- $postgresql := include "sparkonce.postgresql" . | fromJson -}}
- name: SPARKONCE_STORE
{{- if $postgresql.existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ $postgresql.existingSecret }}
      key: {{ $postgresql.urlKey }}
{{- else }}
  value: {{ $url | quote }}
{{- end }}
- name: SPARKONCE_INSTALL
  value: {{ include "sparkonce.install" . | quote }}
{{- if $postgresql.existingSecret }}
- name: SPARKONCE_POSTGRES_POOL
  value: {{ $postgresql.pool | int64 | quote }}
- name: SPARKONCE_POSTGRES_TIMEOUT
  value: {{ $postgresql.timeoutSeconds | toString | quote }}
# libpq's own variables: what the address says takes precedence.
- name: PGSSLMODE
  value: {{ $postgresql.tls.mode }}
- name: PGSSLROOTCERT
  value: {{ ternary "/etc/sparkonce/postgresql/ca.crt" "/etc/ssl/certs/ca-certificates.crt" (ne $postgresql.tls.secretName "") }}
{{- if $postgresql.tls.clientCertificate }}
- name: PGSSLCERT
  value: /etc/sparkonce/postgresql/tls.crt
- name: PGSSLKEY
  value: /etc/sparkonce/postgresql/tls.key
{{- end }}
{{- end }}
{{- with .Values.etcd.external }}
{{- if and .endpoints .auth.user }}
- name: SPARKONCE_ETCD_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .auth.passwordSecret.name }}
      key: {{ .auth.passwordSecret.key }}
{{- end }}
{{- end }}
{{- end }}

{{/* Name of the Secret with TLS files for connections to the store; empty if there is none. */}}
{{- define "sparkonce.storeTls" -}}
{{- $postgresql := include "sparkonce.postgresql" . | fromJson }}
{{- if $postgresql.existingSecret }}{{ $postgresql.tls.secretName }}{{ end }}
{{- if and .Values.etcd.bundled.enabled (include "sparkonce.etcdTls" . | fromJson).enabled }}{{ include "sparkonce.etcdClientSecret" . }}{{ end }}
{{- with .Values.etcd.external }}{{ if and .endpoints .tls.enabled .tls.secretName }}{{ .tls.secretName }}{{ end }}{{ end }}
{{- end }}

{{/* The volume with these files, and where it is mounted; nothing without such a Secret. */}}
{{- define "sparkonce.storeVolume" -}}
{{- $kind := ternary "postgresql" "etcd" (ne (include "sparkonce.postgresql" . | fromJson).existingSecret "") }}
{{- with include "sparkonce.storeTls" . }}
- name: {{ $kind }}-tls
  secret:
    secretName: {{ . }}
    {{- if eq $kind "postgresql" }}
    defaultMode: 0440 # libpq refuses a key that others may read
    {{- end }}
{{- end }}
{{- end }}

{{- define "sparkonce.storeMount" -}}
{{- $kind := ternary "postgresql" "etcd" (ne (include "sparkonce.postgresql" . | fromJson).existingSecret "") }}
{{- if include "sparkonce.storeTls" . }}
- name: {{ $kind }}-tls
  mountPath: /etc/sparkonce/{{ $kind }}
  readOnly: true
{{- end }}
{{- end }}

{{/* Unprivileged security context of every pod. Called with the fields from the values, which are merged over it. */}}
{{- define "sparkonce.podSecurity" -}}
{{- $ours := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- mergeOverwrite $ours (deepCopy .) | toYaml }}
{{- end }}

{{- define "sparkonce.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Priority class, node selector, tolerations and affinity. Called with (list . VALUES), of one component. */}}
{{- define "sparkonce.placement" -}}
{{- $top := index . 0 }}
{{- with index . 1 }}
{{- with .priorityClassName | default $top.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Called with (list . "component" spread). Pods of an older revision do not count. */}}
{{- define "sparkonce.spread" -}}
{{- $spread := index . 2 -}}
- maxSkew: 1
  topologyKey: {{ $spread.topologyKey }}
  whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels: {{- include "sparkonce.selector" (list (index . 0) (index . 1)) | nindent 6 }}
{{- end }}

{{/* Which pods of which namespaces may scrape, as one entry of a NetworkPolicy's `from`. Values of earlier charts select no pods. */}}
{{- define "sparkonce.prometheus" -}}
namespaceSelector: {{- toYaml .Values.networkPolicy.prometheusNamespaceSelector | nindent 2 }}
{{- with .Values.networkPolicy.prometheusPodSelector }}
podSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whether the values select Prometheus: if nothing is selected, the gateway's policy must not admit all namespaces. */}}
{{- define "sparkonce.prometheusKnown" -}}
{{- if or .Values.networkPolicy.prometheusNamespaceSelector .Values.networkPolicy.prometheusPodSelector }}true{{ end }}
{{- end }}

{{/* Whether the values select the controller that serves the gateway's address outside the cluster. */}}
{{- define "sparkonce.ingressKnown" -}}
{{- if and (include "sparkonce.public" . | fromJson) (or .Values.networkPolicy.ingressNamespaceSelector .Values.networkPolicy.ingressPodSelector) }}true{{ end }}
{{- end }}

{{/* Namespaces of the service account for drivers: {"list": [...]} as JSON. */}}
{{- define "sparkonce.jobNamespaces" -}}
{{- $named := .Values.jobs.serviceAccount.namespaces | default .Values.watch.namespaces }}
{{- dict "list" ($named | default (list .Release.Namespace)) | toJson }}
{{- end }}

{{/* Subjects of a RoleBinding from the values. */}}
{{- define "sparkonce.subjects" -}}
{{- range . }}
- kind: {{ .kind }}
  name: {{ .name | quote }}
  {{- if eq .kind "ServiceAccount" }}
  namespace: {{ required (printf "the service account %s among the subjects of rbac needs its namespace" .name) .namespace }}
  {{- else }}
  apiGroup: rbac.authorization.k8s.io
  {{- end }}
{{- end }}
{{- end }}

{{/* Renders nothing. Values of earlier charts have no kubeflow. */}}
{{- define "sparkonce.kubeflow" -}}
{{- if (.Values.kubeflow).enabled }}
{{- $theirs := dig "spark" "jobNamespaces" list .Values.kubeflow }}
{{- range .Values.watch.namespaces | default (list "") }}
{{- if not (or (has . $theirs) (has "" $theirs)) }}
{{- fail (printf "kubeflow.spark.jobNamespaces lacks %s, which is watched: its jobs would wait for ever; add it, or leave that list at [\"\"]" (. | default "\"\" (all namespaces)")) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (.Values.kubeflow).enabled (not .Subcharts.kubeflow) }}
{{- fail "kubeflow.enabled=true needs the chart of a release, which has kubeflow's Spark operator inside: install that chart, make it with `scripts/release chart`, or install the Spark operator by itself and leave this false (docs/install.md)" }}
{{- end }}
{{- end }}
