"""Labels and annotations by which deployment tools recognise the objects they manage, and how they handle them (hooks, waves, pruning).

They belong to the object that the tool applied, the IdempotentJob. An application with a copy of them looks like an object of the tool that
is no longer in its source: pruning deletes it while its attempt runs, and a hook policy deletes it before the next sync. So applications
are made without them, and `sparkonce convert` leaves them on the job. All other labels and annotations go on to each application.

One list for all places that build or convert applications; docs/templates.md repeats it, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeployerMark:
    """A name, or a prefix that ends with `/`, of labels and annotations that a tool writes or reads on what it manages."""

    name: str
    tool: str
    source: str
    on_pods: bool = False
    """Also common on pods, where services and network policies select by it: it stays in the fields for pods."""

    def names(self, label: str) -> bool:
        return label.startswith(self.name) if self.name.endswith("/") else label == self.name


_ARGO = "https://argo-cd.readthedocs.io/en/stable/user-guide/annotations-and-labels/"
_ARGO_TRACKING = "https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/"
_FLUX_KUSTOMIZE = "https://fluxcd.io/flux/components/kustomize/kustomizations/"
_FLUX_HELM = "https://fluxcd.io/flux/components/helm/helmreleases/"
_HELM = "https://helm.sh/docs/chart_best_practices/labels/"
_HELM_HOOKS = "https://helm.sh/docs/topics/charts_hooks/"
_KUBERNETES = "https://kubernetes.io/docs/reference/labels-annotations-taints/"
_KUSTOMIZE = "https://kubectl.docs.kubernetes.io/references/kustomize/"
_KAPP = "https://carvel.dev/kapp/docs/latest/apply/"
_CONFIG_SYNC = "https://cloud.google.com/kubernetes-engine/config-sync/docs/reference/labels-and-annotations"
_FLEET = "https://fleet.rancher.io/"

MARKS: tuple[DeployerMark, ...] = (
    DeployerMark("argocd.argoproj.io/", "Argo CD", _ARGO),
    DeployerMark("app.kubernetes.io/instance", "Argo CD and Helm", _ARGO_TRACKING, on_pods=True),
    DeployerMark("app.kubernetes.io/managed-by", "Helm", _HELM, on_pods=True),
    DeployerMark("helm.sh/chart", "Helm", _HELM, on_pods=True),
    DeployerMark("helm.sh/", "Helm", _HELM_HOOKS),
    DeployerMark("meta.helm.sh/", "Helm", _HELM_HOOKS),
    DeployerMark("kustomize.toolkit.fluxcd.io/", "Flux", _FLUX_KUSTOMIZE),
    DeployerMark("helm.toolkit.fluxcd.io/", "Flux", _FLUX_HELM),
    DeployerMark("reconcile.fluxcd.io/", "Flux", _FLUX_KUSTOMIZE),
    DeployerMark("kustomize.config.k8s.io/", "kustomize", _KUSTOMIZE),
    DeployerMark("config.kubernetes.io/", "kustomize and kpt", _KUSTOMIZE),
    DeployerMark("internal.config.kubernetes.io/", "kustomize and kpt", _KUSTOMIZE),
    DeployerMark("config.k8s.io/", "kustomize and kpt", _KUSTOMIZE),
    DeployerMark("cli-utils.sigs.k8s.io/", "kpt", _KUSTOMIZE),
    DeployerMark("kubectl.kubernetes.io/last-applied-configuration", "kubectl", _KUBERNETES),
    DeployerMark("applyset.kubernetes.io/", "kubectl apply --prune", _KUBERNETES),
    DeployerMark("kapp.k14s.io/", "kapp", _KAPP),
    DeployerMark("configmanagement.gke.io/", "Config Sync", _CONFIG_SYNC),
    DeployerMark("configsync.gke.io/", "Config Sync", _CONFIG_SYNC),
    DeployerMark("objectset.rio.cattle.io/", "Rancher Fleet", _FLEET),
    DeployerMark("fleet.cattle.io/", "Rancher Fleet", _FLEET),
)
"""The first entry that names a label decides."""


def mark_of(label: str) -> DeployerMark | None:
    """The entry that names this label or annotation; None: no tool reads it."""
    return next((each for each in MARKS if each.names(label)), None)


def on_applications(label: str) -> bool:
    """Whether an application may carry this label or annotation of its job."""
    return mark_of(label) is None


def on_pods(label: str) -> bool:
    """Whether the pods of an application may carry this label or annotation."""
    mark = mark_of(label)
    return mark is None or mark.on_pods
