"""Inside of a container there are other files, and often no driver: what the agent reports counts."""

from __future__ import annotations

from msgspec.structs import replace

from partage.doctor import gather
from partage.doctor.decide.observation import Clock, Unseen
from partage.doctor.gather import Sources, see
from partage.doctor.gather_policy import GivenPolicy, Looked
from partage.doctor.host.root import NodeRoot
from partage.model.gpu import Driver, Inventory, NoDriver
from tests.answers.reports import a_document, a_report
from tests.doctor.node import POLICY, Node


def test_in_a_pod_files_of_the_node_are_not_judged(node: Node) -> None:
    """This process's own root, with directories of a node mounted, as in the agent's pod."""
    place = replace(
        node.place,
        root=NodeRoot(),
        machine=None,
        kubelet_dir=str(node.at("var/lib/kubelet/device-plugins")),
        state_dir=str(node.at("var/lib/partage")),
        run_dir=str(node.at("run/partage")),
    )
    pod = Sources(clock=lambda: Clock(True, 0.1), environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    seen = see(place, GivenPolicy(), None, pod)
    assert isinstance(seen.runtime, Unseen)
    assert isinstance(seen.cdi, Unseen)
    assert "--root /host" in seen.cdi.why


def test_the_agents_gpus_count_where_this_process_has_no_driver(node: Node) -> None:
    report = a_document(a_report(str(node.place.machine), POLICY))
    looked = Looked(Inventory(NoDriver("library-missing", "it is not in this image")), Unseen("x"))
    found = gather._as_the_agent_sees(looked, node.place, GivenPolicy(), report)
    assert isinstance(found.inventory.driver, Driver)
    assert isinstance(found.conditions, Unseen)
    assert found.offer
