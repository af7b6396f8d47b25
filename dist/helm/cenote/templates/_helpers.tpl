{{- define "cenote.name" -}}
{{- if contains "cenote" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-cenote" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "cenote.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of a component: dict "root" $ "component" NAME */}}
{{- define "cenote.selector" -}}
app.kubernetes.io/name: cenote
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "cenote.labels" -}}
{{ include "cenote.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* An ordinary user, whom the key's copy belongs to. */}}
{{- define "cenote.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "cenote.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* The key is refused where others may read it, and files of a Secret belong to root: each container
     has a copy of its own in memory. */}}
{{- define "cenote.takeKey" -}}
install -m 400 /etc/cenote/secret/cluster.key /run/cenote/cluster.key
{{- end }}

{{/* Before a port an address of IPv6 has brackets. */}}
{{- define "cenote.bracket" -}}
case ${{ . }} in *:*) {{ . }}="[${{ . }}]" ;; esac
{{- end }}

{{- define "cenote.keyVolumes" -}}
- name: secret
  secret: { secretName: {{ .Values.key.secretName }}, defaultMode: 0440 }
- name: run
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
{{- end }}

{{- define "cenote.keyMounts" -}}
- { name: secret, mountPath: /etc/cenote/secret, readOnly: true }
- { name: run, mountPath: /run/cenote }
{{- end }}

{{- define "cenote.etcd" -}}
{{- if .Values.etcd.endpoints -}}{{ .Values.etcd.endpoints }}
{{- else -}}http://{{ include "cenote.name" . }}-etcd:2379{{- end -}}
{{- end }}

{{- define "cenote.scraped" -}}
{{- if .root.Values.metrics.annotations }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
{{- end }}
{{- end }}
