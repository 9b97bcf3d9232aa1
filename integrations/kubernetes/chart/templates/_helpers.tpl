{{- define "vgpu.name" -}}
{{- if contains "vgpu" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-vgpu" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "vgpu.selector" -}}
app.kubernetes.io/name: vgpu
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vgpu.labels" -}}
{{ include "vgpu.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "vgpu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The daemon's file: the chart's sections, then those of the values. */ -}}
{{- define "vgpu.config" -}}
[daemon]
run_dir = {{ .Values.hostPaths.run | quote }}
state_dir = {{ .Values.hostPaths.state | quote }}

[metrics]
listen = {{ if .Values.metrics.enabled }}{{ printf "0.0.0.0:%d" (int .Values.metrics.port) | quote }}{{ else }}"none"{{ end }}

{{ .Values.config }}
{{- end }}
