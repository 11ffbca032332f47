{{- define "proxium.name" -}}
{{- if contains "proxium" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-proxium" .Release.Name }}{{ end -}}
{{- end }}

{{- define "proxium.selector" -}}
app.kubernetes.io/name: proxium
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "proxium.labels" -}}
{{ include "proxium.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "proxium.catalog" -}}
{{- .Values.existingCatalog | default (printf "%s-catalog" (include "proxium.name" .)) -}}
{{- end }}
