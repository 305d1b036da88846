"""Work on images that may take long: asked of the node agents, with news, the launch lock kept, and ended when interrupted."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import BadSettings
from cluster.execute import Answer, Nodes, Results
from cluster.fields import Settings
from cluster.images.identity import Image, read
from cluster.plan import Step, run_dir
from cluster.session import Cluster
from cluster.transport import LocalTransport
from cluster.waiting import Wait

HERE = "here"  # the role of this machine when it is no node
_LOOK_EVERY_S = 2.0
_NEWS_EVERY_S = 10.0
_LONGEST_S = 4 * 3600.0


@dataclass(frozen=True)
class Site:
    """Where image work is done: the cluster, the launch lock's token (held meanwhile), and who is told what goes on."""

    cluster: Cluster
    token: str
    say: Callable[[str], None]

    @property
    def settings(self) -> Settings:
        return self.cluster.effective.settings

    @property
    def head(self) -> str:
        return self.cluster.head

    @property
    def workers(self) -> tuple[str, ...]:
        return self.cluster.effective.kit.nodes[1:]

    @property
    def nodes(self) -> Nodes:
        """The nodes of the cluster, and this machine as `here`."""
        transports = {**self.cluster.nodes.transports, HERE: LocalTransport(HERE)}
        return Nodes(transports, self.cluster.nodes.python)

    def step(self, role: str, action: str, shown: str, *, timeout_s: float = 120, **more: Any) -> Step:
        """One request about the image. Status and log of a long command lie in the run directory of the node."""
        stamp, verb = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), action.rpartition("_")[2]
        folder = run_dir(self.cluster.ranks[0])
        files = {"status": f"{folder}/image-{verb}.json", "log": f"{folder}/logs/{stamp}-image-{verb}.log"}
        return Step(role, shown, {"action": action, "name": self.settings.image, **files, **more}, timeout_s)

    def ask(self, step: Step) -> Answer:
        return self.nodes.run([step]).all_or_raise("images")[step.role]

    def look(self, name: str, roles: Iterable[str]) -> tuple[dict[str, Image | None], Mapping[str, Answer]]:
        """The image of that name on each of the nodes, and their whole answers."""
        steps = [self.step(role, "images_look", f"docker image inspect {name}", images=[name]) for role in roles]
        answers = self.nodes.run(steps).all_or_raise("looking at the images")
        return {role: read(name, answer["images"][name]) for role, answer in answers.items()}, answers

    def long(self, steps: Iterable[Step], news: Callable[[str, Answer], str]) -> Results:
        """Run the steps, all at once, and wait; `news` makes words of a node's images_watch. An interruption ends what they run."""
        wanted = [Step(step.role, step.shown, step.request, _LONGEST_S) for step in steps]
        wait, told = Wait(self.cluster, self.token, self.say), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(self.nodes.run, wanted)
            try:
                while not concurrent.futures.wait([future], _LOOK_EVERY_S).done:
                    wait.refresh()
                    if time.monotonic() - told > _NEWS_EVERY_S:
                        told = time.monotonic()
                        self._tell(wanted, news)
            except BaseException:
                self._cancel(wanted, future)
                raise
            return future.result()

    def _tell(self, steps: Iterable[Step], news: Callable[[str, Answer], str]) -> None:
        seen = self.nodes.run(_about(step, "images_watch") for step in steps).answers
        for role, answer in seen.items():
            if answer["running"] and (words := news(role, answer)):
                self.say(words)

    def _cancel(self, steps: Iterable[Step], future: concurrent.futures.Future[Results]) -> None:
        """End the commands; again, while one may just have been starting."""
        for _ in range(3):
            self.nodes.run(_about(step, "images_cancel") for step in steps)
            if concurrent.futures.wait([future], 3).done:
                return


def _about(step: Step, action: str) -> Step:
    return Step(step.role, action, {**{name: step.request[name] for name in ("name", "status", "log")}, "action": action}, 30)


def site(cluster: Cluster, token: str, say: Callable[[str], None]) -> Site:
    """Raises BadSettings for a kit that runs no containers."""
    if cluster.effective.settings.runtime != "docker":
        raise BadSettings(f"kit {cluster.kit} runs without containers (RUNTIME=process): it needs no image", hint="name a kit: --kit")
    return Site(cluster, token, say)


def last_line(role: str, answer: Answer) -> str:
    """News of a command with a log."""
    return f"  {role}: {answer['line'][:110]}" if answer["line"] else ""
