{{- define "partage.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "partage.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "partage.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "partage.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "partage.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "partage.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "partage.selector" . }}
{{- end }}

{{- define "partage.selector" -}}
app.kubernetes.io/name: {{ include "partage.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "partage.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "partage.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (printf "%s-agent" (include "partage.fullname" .)) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: say which one, because serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "partage.configMap" -}}
{{- if .Values.config.map }}{{ include "partage.fullname" . }}-policies{{ else }}{{ .Values.config.name }}{{ end }}
{{- end }}

{{- define "partage.canary" -}}
{{- $labels := list }}
{{- range $key, $value := .Values.rollout.canary }}{{ $labels = append $labels (printf "%s=%v" $key $value) }}{{ end }}
{{- join "," $labels }}
{{- end }}

{{- /* Numbers of the Leases of a rollout: as many nodes as may change at once, and any beyond that a node still holds. */}}
{{- define "partage.slots" -}}
{{- $rollout := printf "%s-rollout" (include "partage.fullname" .) }}
{{- $allowed := int .Values.rollout.maxChanging }}
{{- $numbers := list }}
{{- range $number := until $allowed }}{{ $numbers = append $numbers $number }}{{ end }}
{{- range (lookup "coordination.k8s.io/v1" "Lease" (include "partage.namespace" .) "").items }}
{{- $number := trimPrefix (printf "%s-" $rollout) .metadata.name }}
{{- if and (eq $rollout (dig "labels" "partage.dev/rollout" "" .metadata)) (dig "spec" "holderIdentity" "" .) (regexMatch "^[0-9]+$" $number) }}
{{- if ge (atoi $number) $allowed }}{{ $numbers = append $numbers $number }}{{ end }}
{{- end }}
{{- end }}
{{- join " " $numbers }}
{{- end }}

{{- define "partage.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.tolerations .Values.cluster.taints }}
tolerations:
  {{- with .Values.tolerations }}{{ toYaml . | nindent 2 }}{{ end }}
  {{- range .Values.cluster.taints }}
  # A taint of the agent must not keep the agent away.
  - {key: partage.dev/{{ . }}, operator: Exists}
  {{- end }}
{{- end }}
{{- end }}
