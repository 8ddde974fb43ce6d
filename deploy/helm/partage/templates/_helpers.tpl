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
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{ include "partage.selector" . }}
{{- end }}

{{- define "partage.selector" -}}
app.kubernetes.io/name: {{ include "partage.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
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
  - {key: {{ printf "partage.dev/%s" . | quote }}, operator: Exists}
  {{- end }}
{{- end }}
{{- end }}

{{- /* How many of the nodes that helm finds can have the pods, by nodeSelector and required node affinity; the operators Gt and Lt count
as met. Empty where helm asks no cluster (helm template). */}}
{{- define "partage.nodesFound" -}}
{{- $nodes := (lookup "v1" "Node" "" "").items }}
{{- if $nodes }}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list) (.Values.affinity | default dict) }}
{{- $found := 0 }}
{{- range $nodes }}
{{- $labels := .metadata.labels | default dict }}
{{- $fits := not $terms }}
{{- range $terms }}
{{- $met := true }}
{{- range .matchExpressions }}
{{- $there := hasKey $labels .key }}
{{- $in := and $there (has (get $labels .key) (.values | default list)) }}
{{- if or (and (eq .operator "In") (not $in)) (and (eq .operator "NotIn") $in) (and (eq .operator "Exists") (not $there)) (and (eq .operator "DoesNotExist") $there) }}
{{- $met = false }}
{{- end }}
{{- end }}
{{- if $met }}{{ $fits = true }}{{ end }}
{{- end }}
{{- range $key, $value := $.Values.nodeSelector }}
{{- if ne (get $labels $key | default "") $value }}{{ $fits = false }}{{ end }}
{{- end }}
{{- if $fits }}{{ $found = add1 $found }}{{ end }}
{{- end }}
{{- $found }}
{{- end }}
{{- end }}

{{- /* Which pods are sent to the webhook: those with a name of another system. The same expression as tests/admission/conditions.py
makes, which the tests compare. nvidia.com/gpu alone is no such name. */}}
{{- define "partage.sentPods" -}}
{{- $hami := .Values.admission.hami }}
{{- $count := $hami.resourceCountName }}
{{- $parts := list $hami.resourceMemoryName $hami.resourceMemoryPercentageName $hami.resourceCoreName $hami.resourcePriorityName }}
{{- $volcano := list "volcano.sh/gpu-memory" "volcano.sh/gpu-number" "volcano.sh/vgpu-cores" "volcano.sh/vgpu-memory" "volcano.sh/vgpu-memory-percentage" "volcano.sh/vgpu-number" }}
{{- $ack := list "aliyun.com/gpu-core.percentage" "aliyun.com/gpu-core.tflops" "aliyun.com/gpu-count" "aliyun.com/gpu-mem" }}
{{- $resources := concat (uniq $parts) $volcano $ack }}
{{- $kai := list "gpu-fraction" "gpu-memory" "gpu-fraction-num-devices" }}
{{- $marks := list "nvidia.com/use-gputype" "nvidia.com/nouse-gputype" "nvidia.com/use-gpuuuid" "nvidia.com/nouse-gpuuuid" "nvidia.com/numa-bind" "nvidia.com/vgpu-mode" "hami.io/node-scheduler-policy" "hami.io/gpu-scheduler-policy" }}
{{- $gke := list "cloud.google.com/gke-gpu-sharing-strategy" "cloud.google.com/gke-max-shared-clients-per-gpu" }}
{{- $schedulers := list "hami-scheduler" "kai-scheduler" "nos-scheduler" "runai-scheduler" "volcano" }}
{{- $asked := "(object.spec.?containers.orValue([]) + object.spec.?initContainers.orValue([])).exists(c, ['limits', 'requests'].exists(p, c.?resources[?p].orValue({}).exists(k, %s)))" }}
{{- $has := "object.%s.exists(k, k in %s)" }}
{{- $annotations := "metadata.?annotations.orValue({})" }}
{{- $either := list
  (printf $asked (printf "k in %s || k.matches(%q)" (toJson $resources) "^nvidia[.]com/gpu-([1-9][0-9]{0,3})gb$"))
  (printf $has $annotations (toJson $kai))
  (printf "%s && %s" (printf $asked (printf "k == %q" $count)) (printf $has $annotations (toJson $marks)))
  (printf "%s && %s" (printf $asked (printf "k == %q" "nvidia.com/gpu")) (printf $has "spec.?nodeSelector.orValue({})" (toJson $gke)))
  (printf "%s && object.spec.?schedulerName.orValue('') in %s" (printf $asked (printf "k.startsWith(%q)" "nvidia.com/")) (toJson $schedulers)) }}
{{- join " || " $either }}
{{- end }}

{{- /* The DeviceClasses by which claims ask: which attribute a device has to have, and with which of these values. */}}
{{- define "partage.deviceClasses" -}}
{{- if eq .Values.dra.driverName "gpu.nvidia.com" }}
gpu.nvidia.com: {attribute: type, values: [gpu]}
mig.nvidia.com: {attribute: type, values: [mig]}
{{- else }}
gpu.partage.dev: {attribute: mode, values: [whole, amounts]}
share.partage.dev: {attribute: mode, values: [replicas]}
mig.partage.dev: {attribute: mode, values: [mig]}
{{- end }}
{{- end }}
