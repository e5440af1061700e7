{{/* The name of all objects. It ends in -connect, as do the pods and containers of a Kafka Connect cluster of Strimzi:
     alerts and dashboards that select by these names find the worker. */}}
{{- define "tailrace.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "tailrace" $name) }}{{ $name = printf "%s-tailrace" $name }}{{ end -}}
{{- printf "%s-connect" ($name | trunc 40 | trimSuffix "-") -}}
{{- end }}

{{- define "tailrace.selector" -}}
app.kubernetes.io/name: tailrace
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tailrace.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "tailrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: worker
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* A key of a ConfigMap cannot contain a slash. */}}
{{- define "tailrace.schemaKey" -}}
{{ . | replace "/" "__" }}
{{- end }}

{{- define "tailrace.scheme" -}}
{{- if .Values.http.settings.tls }}https{{ else }}http{{ end }}
{{- end }}
