"""To which nodes a pod may go, by their names, labels and taints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partage.values import Frozen

NAME_FIELD = "metadata.name"
"""The only field of a Node that an affinity can name."""
KEEPS_AWAY = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods away which do not tolerate them."""


class Toleration(Frozen):
    """A toleration. An empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether a taint does not keep the pod away."""
        if self.effect not in ("", effect) or self.key not in ("", key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == value)


class LabelRule(Frozen):
    """What a node's label has to be. operator: ``In``, ``NotIn``, ``Exists``, ``DoesNotExist``, ``Gt``,
    ``Lt``. of_field: key is a field of the Node, not a label.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_field: bool = False

    def holds(self, labels: Mapping[str, str], node: str) -> bool:
        """Whether a node with this name and these labels meets it."""
        has = ({NAME_FIELD: node} if self.of_field else labels).get(self.key)
        match self.operator:
            case "In":
                return has in self.values
            case "NotIn":
                return has not in self.values
            case "Exists":
                return has is not None
            case "DoesNotExist":
                return has is None
            case "Gt" | "Lt":
                return _compared(self.operator, has, self.values)
        return False

    def __str__(self) -> str:
        """``pool in (a, b)``, ``pool = a``."""
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "In" | "NotIn":
                word = "in" if self.operator == "In" else "not in"
                return f"{self.key} {word} ({', '.join(self.values)})"
            case "Exists" | "DoesNotExist":
                return f"{self.key} {'exists' if self.operator == 'Exists' else 'does not exist'}"
        return f"{self.key} {'>' if self.operator == 'Gt' else '<'} {', '.join(self.values)}"


def _compared(operator: str, has: str | None, values: tuple[str, ...]) -> bool:
    try:
        there, wanted = int(has or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return there > wanted if operator == "Gt" else there < wanted


Term = tuple[LabelRule, ...]
"""Rules that all have to hold."""


class NodeRules(Frozen):
    """All of them. selector: labels and their values. affinity: terms of which one has to hold; None: there
    is none.
    """

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def allow(self, node: str, labels: Mapping[str, str], taints: Iterable[tuple[str, str, str]]) -> bool:
        """Whether a pod may go to this node. taints: key, value and effect."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if self.affinity is not None and not any(
            term and all(rule.holds(labels, node) for rule in term) for term in self.affinity
        ):
            return False
        return all(
            any(toleration.tolerates(*taint) for toleration in self.tolerations)
            for taint in taints
            if taint[2] in KEEPS_AWAY
        )
