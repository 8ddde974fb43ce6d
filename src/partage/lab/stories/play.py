"""Play a story step by step, and report what happens."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import assert_never

from msgspec.structs import replace

from partage.answers.wording import shares_of
from partage.errors import InputError, Problem, Unsatisfiable
from partage.lab.stories.expectations import NodeSnapshot, unmet_expectations
from partage.lab.stories.model import (
    ChangePolicy,
    EndPods,
    Expect,
    FaultStep,
    PolicyText,
    Remark,
    RestartAgent,
    RestartKubelet,
    RunPods,
    SetLabels,
    Story,
    StoryStep,
    TimePasses,
    short_key,
)
from partage.lab.stories.read import check_policy
from partage.lab.stories.sentences import (
    expectation_sentence,
    label_sentence,
    pod_lines,
    refusal_sentence,
    waiting_sentences,
)
from partage.lab.stories.stage import StoryStage
from partage.model.gpu import Inventory
from partage.sim.kubelet.pods import PodPhase, PodStatus
from partage.values import Frozen


class StoryScene(Frozen, omit_defaults=True):
    """One thing that happened, for a reader.

    at_s: since the story began, by its own clock: only ``later`` moves it. verb: ``ready``, ``say``, ``run``,
    ``refused``, ``end``, ``policy``, ``restart``, ``later``, ``fault``, ``expect``. good: None where nothing
    was expected.
    """

    at_s: float
    verb: str
    text: str
    good: bool | None = None
    details: tuple[str, ...] = ()


class StoryEnding(Frozen):
    """How the node stands when the story is over.

    run_dir: the agent's, with which host paths begin. protocol_errors: breaches of the kubelet's protocol.
    """

    scenes: tuple[StoryScene, ...]
    inventory: Inventory
    snapshot: NodeSnapshot
    run_dir: str
    protocol_errors: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Every expectation came true, and the agent kept to the protocol."""
        return not self.protocol_errors and all(scene.good is not False for scene in self.scenes)


Beside = Callable[[StoryStage], AbstractAsyncContextManager[None]]
"""What goes on beside a story: entered before the agent starts, left after the last step, while the node
still stands."""


def alone(stage: StoryStage) -> AbstractAsyncContextManager[None]:
    """Nothing goes on beside the story."""
    del stage
    return nullcontext()


async def play(
    story: Story,
    *,
    seed: int = 0,
    on_scene: Callable[[StoryScene], None] = lambda _: None,
    beside: Beside = alone,
) -> StoryEnding:
    """Play the story to its end; expectations that fail do not stop it.

    seed: of the order in which the kubelet names free devices. on_scene: called for each scene as it happens.
    Raises what the agent raises at its start: InputError or Unsatisfiable for a policy that cannot hold.
    """
    check_policy(story)  # before the agent reads it, so that problems carry the name that the operator knows
    with tempfile.TemporaryDirectory(prefix="partage-", dir=_short_folder()) as folder:
        player = StoryPlayer(story, Path(folder), seed, on_scene)
        try:
            return await player.play(beside)
        except (InputError, Unsatisfiable) as error:
            raise type(error)(player.named(error.problems)) from error


def _short_folder() -> str | None:
    """A folder for sockets: their paths have 107 bytes at most, and some temporary folders are long."""
    short = "/tmp"  # noqa: S108 - a folder of our own is made in it
    return short if len(tempfile.gettempdir()) > len(short) and os.access(short, os.W_OK) else None


class StoryPlayer:
    """Carries out the steps of one story."""

    def __init__(self, story: Story, folder: Path, seed: int, on_scene: Callable[[StoryScene], None]) -> None:
        self.story = story
        self.folder = folder
        self.seed = seed
        self.on_scene = on_scene
        self.scenes: list[StoryScene] = []
        self.policy_name: str = ""
        self.stage = StoryStage(self.story, self.folder, self.seed, self._report_late_pod)
        self.policy_name = self.story.policy.name if self.story.policy else ""

    async def play(self, beside: Beside) -> StoryEnding:
        """From the start of the agent to the end of the last step. Leaves no process behind."""
        try:
            async with beside(self.stage):
                await self.start()
                for step in self.story.steps:
                    await self.perform(step)
                return await self.ending()
        finally:
            await self.stage.close()  # raises what the agent has raised

    async def start(self) -> None:
        """Done when everything is registered, and what the policy wants is made."""
        await self.stage.open()
        await self.stage.rest()
        names = ", ".join(self.stage.kubelet.allocatable()) or "nothing"
        self._report("ready", f"the agent has registered {names}")

    async def ending(self) -> StoryEnding:
        """The node once the agent is at rest."""
        await self.stage.rest()
        return StoryEnding(
            scenes=tuple(self.scenes),
            inventory=await self.stage.hardware.observe(),
            snapshot=self.stage.snapshot(),
            run_dir=str(self.stage.settings.run_dir),
            protocol_errors=self.stage.kubelet.protocol_errors,
        )

    async def perform(self, step: StoryStep) -> None:
        """Do what the step says, and report it. What comes before it has been taken notice of."""
        if not isinstance(step, Remark | Expect):
            await self.stage.rest()
        match step:
            case Remark():
                self._report("say", step.text)
            case RunPods():
                await self._run(step)
            case EndPods():
                await self._end(step)
            case ChangePolicy():
                await self._change_policy(step.policy)
            case SetLabels():
                self.stage.set_labels(step.labels)
                await self.stage.noticed()
                await self.stage.rest()
                self._report("label", label_sentence(step.labels), details=tuple(self._waiting()))
            case RestartKubelet():
                await self._restart("the kubelet", self.stage.kubelet.restart)
            case RestartAgent():
                await self._restart("the agent", self._restart_agent)
            case TimePasses():
                self.stage.clock.jump(step.seconds)
                self._report("later", f"{step.seconds:g} s pass")
                await self.stage.noticed()
            case FaultStep():
                await self.stage.hardware.inject(step.fault)
                self._report("fault", str(step.fault))
                await self.stage.noticed()
            case Expect():
                await self._expect(step)
            case _:
                assert_never(step)

    # --- pods ---

    async def _run(self, step: RunPods) -> None:
        for pod in step.pods:
            if step.work is not None:
                self.stage.work.want(pod.key, step.work)
            status = await self.stage.admit(pod, may_wait=step.refused is None)
            if step.refused is None:
                self._report_pod(status)
            else:
                self._report_refusal(status, step.refused)

    def _report_pod(self, status: PodStatus, suffix: str = "") -> None:
        report = self.stage.agent_status.report
        shares = shares_of(report.offer) if report else {}
        lines = pod_lines(status, shares) if status.containers else [refusal_sentence(status)]
        self._report("run", status.pod.key + suffix, details=tuple(lines))

    def _report_late_pod(self, status: PodStatus) -> None:
        self._report_pod(status, ", which waited")

    def _report_refusal(self, status: PodStatus, wanted: str) -> None:
        if status.phase is PodPhase.RUNNING:
            self._report("refused", status.pod.key, False, ("runs, and should have been refused",))
            return
        good = wanted.lower() in status.message.lower()
        details = (
            [refusal_sentence(status)]
            if good
            else [refusal_sentence(status), f"refused, but not because of {wanted!r}"]
        )
        self._report("refused", status.pod.key, good, tuple(details))

    async def _end(self, step: EndPods) -> None:
        running = [status.pod for status in self.stage.kubelet.pods() if status.holds]
        ending = [pod for pod in running if fnmatchcase(pod.key, step.pattern)]
        given_up = [key for key in self.stage.waiting if fnmatchcase(key, step.pattern)]
        for key in given_up:  # first: they would take the shares of the others
            await self.stage.give_up(key)
        for pod in ending:
            await self.stage.kubelet.end(pod)
        await self.stage.work.update(self.stage.kubelet.pods())
        names = [short_key(key) for key in (*(pod.key for pod in ending), *given_up)]
        self._report("end", ", ".join(names) or f"no pod is called {step.pattern}", None if names else False)

    # --- changes ---

    async def _change_policy(self, policy: PolicyText) -> None:
        counts = self.stage.agent_status.counts
        before = counts.reloads_ok + counts.reloads_failed
        digest = hashlib.sha256(policy.content).hexdigest()
        self.policy_name = policy.name
        self.stage.write_policy(policy)

        def noticed() -> bool:
            report = self.stage.agent_status.report
            same = report is not None and report.policy.digest == digest and not report.policy.problems
            return same or counts.reloads_ok + counts.reloads_failed > before

        await (self.stage.eventually(noticed) if policy.files is None else self.stage.noticed())
        await self.stage.eventually(self.stage.at_rest)
        problems = self._problems()
        text = "is refused, the last good one stays" if problems else "is taken over"
        details = [str(problem) for problem in problems] or self._waiting()
        self._report("policy", f"{Path(policy.name).name} {text}", details=tuple(details))

    def _waiting(self) -> list[str]:
        report = self.stage.agent_status.report
        return waiting_sentences(report) if report else []

    def _problems(self) -> list[Problem]:
        """What is wrong with the policy, under the name of its file, without the folder."""
        report = self.stage.agent_status.report
        return self._under(Path(self.policy_name).name, report.policy.problems if report else ())

    def named(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems of the copy that the agent reads, under the name that the story gave the policy."""
        return self._under(self.policy_name, problems)

    def _under(self, name: str, problems: Sequence[Problem]) -> list[Problem]:
        own = str(self.stage.settings.policy)
        return [replace(problem, file=name) if problem.file == own else problem for problem in problems]

    async def _restart(self, what: str, restart: Callable[[], Awaitable[None]]) -> None:
        await restart()
        back = await self.stage.eventually(self.stage.settled)
        after = "everything is registered again" if back else "not everything is registered again"
        self._report("restart", f"{what}; {after}", back)

    async def _restart_agent(self) -> None:
        await self.stage.stop_agent()
        await self.stage.start_agent()

    async def _expect(self, step: Expect) -> None:
        def missing() -> list[str]:
            return unmet_expectations(step, self.stage.snapshot())

        await self.stage.rest(step.within_s)
        good = await self.stage.eventually(lambda: not missing(), step.within_s)
        self._report("expect", expectation_sentence(step), good, () if good else tuple(missing()))

    def _report(self, verb: str, text: str, good: bool | None = None, details: tuple[str, ...] = ()) -> None:
        scene = StoryScene(self.stage.clock.ahead_s, verb, text, good, details)
        self.scenes.append(scene)
        self.on_scene(scene)
