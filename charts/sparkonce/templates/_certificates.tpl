{{/* Names in the certificate of the bundled etcd's members: {"list": [...]} as JSON. Always for three members, since a ledger with one may grow. */}}
{{- define "sparkonce.etcdHosts" -}}
{{- $name := include "sparkonce.etcdName" . }}
{{- $hosts := list "localhost" }}
{{- range $each := until 3 }}
{{- $hosts = append $hosts (printf "%s-%d.%s.%s.svc" $name $each $name $.Release.Namespace) }}
{{- end }}
{{- dict "list" $hosts | toJson }}
{{- end }}

{{/*
Certificates of the bundled etcd, made by the chart: a CA in a Secret that no pod mounts, one certificate for the members and one for their
clients. Certificates in the release's Secrets are reused until they must be renewed; the CA stays, so that old and new certificates work
side by side. Returns {"ca": CERTIFICATE, "secrets": [{name, type, renewAfter, data}]} as JSON; without a cluster each call makes new ones.
*/}}
{{- define "sparkonce.etcdCertificates" -}}
{{- $name := include "sparkonce.etcdName" . }}
{{- $now := now | unixEpoch | int64 }}
{{- $year := mul 365 86400 | int64 }}
{{- $hosts := (include "sparkonce.etcdHosts" . | fromJson).list }}
{{- $found := dict }}
{{- range list "ca" "members" "client" }}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace (printf "%s-%s" $name .) | default dict }}
{{- $data := $secret.data | default dict }}
{{- if and (index $data "tls.crt") (index $data "tls.key") }}
{{- $renew := dig "metadata" "annotations" "sparkonce.dev/renew-after" "0" $secret | int64 }}
{{- $_ := set $found . (dict "data" $data "renewAfter" $renew) }}
{{- end }}
{{- end }}
{{- $ca := dict }}
{{- $old := $found.ca }}
{{- if $old }}
{{- $ca = buildCustomCert (index $old.data "tls.crt") (index $old.data "tls.key") }}
{{- else }}
{{- $ca = genCA "sparkonce-ledger" 3650 }}
{{- end }}
{{- $data := dict "tls.crt" ($ca.Cert | b64enc) "tls.key" ($ca.Key | b64enc) }}
{{- $secrets := list (dict "name" (printf "%s-ca" $name) "type" "Opaque" "data" $data) }}
{{- range list "members" "client" }}
{{- $known := get $found . | default dict }}
{{- $renewAfter := int64 ($known.renewAfter | default 0) }}
{{- if or (not $old) (le $renewAfter $now) (ne (dig "data" "ca.crt" "" $known) ($ca.Cert | b64enc)) }}
{{- $addresses := ternary (list "127.0.0.1") list (eq . "members") }}
{{- $names := ternary $hosts list (eq . "members") }}{{/* etcd compares a client's address with the names in its certificate, if any */}}
{{- $signed := genSignedCert (printf "sparkonce-%s" .) $addresses $names 1825 $ca }}
{{- $renewAfter = add $now $year }}
{{- $data = dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($signed.Cert | b64enc) "tls.key" ($signed.Key | b64enc) }}
{{- else }}
{{- $data = pick $known.data "ca.crt" "tls.crt" "tls.key" }}
{{- end }}
{{- $secret := dict "name" (printf "%s-%s" $name .) "type" "kubernetes.io/tls" "renewAfter" (toString $renewAfter) "data" $data }}
{{- $secrets = append $secrets $secret }}
{{- end }}
{{- dict "ca" $ca.Cert "secrets" $secrets | toJson }}
{{- end }}
