{{/* Names, labels, and what several templates say alike. */}}

{{- define "sparkonce.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters: the longest name made from it, of an etcd pod, still fits a label. */}}
{{- define "sparkonce.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "sparkonce.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "sparkonce.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Of what is cluster-wide: two releases of one name in two namespaces have two. */}}
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

{{- define "sparkonce.labels" -}}
{{- $top := index . 0 -}}
{{ include "sparkonce.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sparkonce
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name ($top.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* Called with (list . image). */}}
{{- define "sparkonce.image" -}}
{{- $top := index . 0 }}{{ $image := index . 1 -}}
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

{{- define "sparkonce.gatewayUrl" -}}
{{- printf "%s://%s-gateway.%s.svc:%d" (ternary "https" "http" (ne .Values.gateway.tls.secretName "")) (include "sparkonce.fullname" .) .Release.Namespace (int .Values.gateway.port) }}
{{- end }}

{{- define "sparkonce.etcdName" -}}
{{- printf "%s-etcd" (include "sparkonce.fullname" .) }}
{{- end }}

{{/* The store's URL: either what is outside, or every member of what is bundled. */}}
{{- define "sparkonce.store" -}}
{{- $external := .Values.etcd.external }}
{{- if and .Values.etcd.bundled.enabled $external.endpoints }}
{{- fail "etcd.external.endpoints and etcd.bundled.enabled are both set: the ledger is in one of them, leave the other out" }}
{{- else if .Values.etcd.bundled.enabled }}
{{- $members := list }}
{{- range $each := until (int .Values.etcd.bundled.replicas) }}
{{- $members = append $members (printf "%s-%d.%s.%s.svc:2379" (include "sparkonce.etcdName" $) $each (include "sparkonce.etcdName" $) $.Release.Namespace) }}
{{- end }}
{{- printf "etcd://%s?quota=%d" (join "," $members) (int64 .Values.etcd.bundled.quotaBytes) }}
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
{{- fail "the ledger needs an etcd: set etcd.external.endpoints to yours, or etcd.bundled.enabled=true to start one with this release" }}
{{- end }}
{{- end }}

{{/* Environment of whoever talks to the store. */}}
{{- define "sparkonce.storeEnv" -}}
- name: SPARKONCE_STORE
  value: {{ include "sparkonce.store" . | quote }}
- name: SPARKONCE_INSTALL
  value: {{ include "sparkonce.install" . | quote }}
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

{{- define "sparkonce.storeTls" -}}
{{- with .Values.etcd.external }}{{ if and .endpoints .tls.enabled .tls.secretName }}{{ .tls.secretName }}{{ end }}{{ end }}
{{- end }}

{{/* Whoever a pod runs as, it may nothing. Called with the additions of the values. */}}
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

{{/* Where pods may run, as the values of one component say it. */}}
{{- define "sparkonce.placement" -}}
{{- with .priorityClassName }}
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

{{/* Called with (list . "component" spread). A rollout's old pods do not count. */}}
{{- define "sparkonce.spread" -}}
{{- $spread := index . 2 -}}
- maxSkew: 1
  topologyKey: {{ $spread.topologyKey }}
  whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels: {{- include "sparkonce.selector" (list (index . 0) (index . 1)) | nindent 6 }}
{{- end }}

{{/* What says in which namespaces jobs are: JSON, empty for all. */}}
{{- define "sparkonce.jobNamespaces" -}}
{{- $named := .Values.jobs.serviceAccount.namespaces | default .Values.watch.namespaces }}
{{- dict "list" ($named | default (list .Release.Namespace)) | toJson }}
{{- end }}
