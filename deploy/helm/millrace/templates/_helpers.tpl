{{- define "millrace.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millrace.labels" -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Not empty if public keys verify tokens, so that a secret for HS256 is optional. */}}
{{- define "millrace.publicKeys" -}}
{{- or .Values.settings.AUTH__KEYS .Values.settings.AUTH__JWKS | default "" -}}
{{- end -}}

{{- define "millrace.secret" -}}
{{- .Values.existingSecret | default (include "millrace.name" .) -}}
{{- end -}}
