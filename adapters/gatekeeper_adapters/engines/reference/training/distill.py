"""Distillation: the draft's distribution at every place towards the target's there.

The loss is the cross entropy with the likeliest ids of the target's softmax over the draft
vocabulary. Its gradient with respect to the logits is a difference of distributions, so the head is
passed once forward and once back; of its rows, which stay as they are, each step takes some.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from gatekeeper_adapters.engines.reference.training.checkpoint import (
    Checkpoint,
    Learner,
    Point,
    Run,
    StopAsked,
)
from gatekeeper_adapters.engines.reference.training.evaluate import acceptance
from gatekeeper_adapters.engines.reference.training.goals import goals_of, line_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gatekeeper_adapters.engines.reference.training.goals import Goals, Lineup
    from gatekeeper_adapters.engines.reference.training.networks import Network
    from gatekeeper_adapters.engines.reference.training.texts import Text

__all__ = ["Interrupted", "Material", "Settings", "distill", "steps_for"]

POINTS = 12
"""Points of the curve, and checkpoints, of a whole run."""

WARM_UP, FLOOR = 0.1, 0.05
"""Share of the steps with a rising rate; the rate at the end as a share of the highest."""

MEASURED = 8
"""Steps made on a copy to learn what one costs."""


class Interrupted(Exception):
    """The run stopped as asked and left a checkpoint."""


@dataclass(frozen=True)
class Settings:
    """``steps``, and ``noise``: the half width of what disturbs the states that a drafter reads."""

    steps: int
    seed: int = 0
    noise: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True)
class Material:
    """Texts to learn from, greedy held-out texts, and the target's head rows [R, H] of ``ids`` [R]."""

    train: Sequence[Text]
    held_out: Sequence[Text]
    head: Tensor
    ids: Tensor

    @cached_property
    def goals(self) -> tuple[Goals, ...]:
        """What the target says in each training text; computed when first asked for."""
        return tuple(goals_of(text, self.head) for text in self.train)


def distill(
    network: Network,
    material: Material,
    settings: Settings,
    checkpoint: Checkpoint,
    *,
    note: Callable[[str], None],
    clock: Callable[[], float],
) -> Run:
    """Train ``network`` in place, from ``checkpoint`` on where there is one.

    Everything random comes from one generator whose state is kept, so a run that was killed ends
    with the bits of one that was not. ``clock`` counts CPU seconds.

    Raises:
        Conflict: the checkpoint belongs to another run.
        Interrupted: asked to stop by SIGINT; the checkpoint is written.
    """
    learner = _learner(network, settings.seed)
    run = checkpoint.restore(learner)
    begun = clock() - run.seconds
    if not run.curve:
        network.begin(material.train)
    every = max(1, -(-settings.steps // POINTS))
    with StopAsked() as stop:
        while True:
            due = run.step % every == 0 or run.step == settings.steps
            if due and not (run.curve and run.curve[-1].step == run.step):
                run.curve.append(_point(network, material, run))
                run.loss = 0.0
                run.seconds = clock() - begun
                checkpoint.save(learner, run, settings.steps)
                note(_progress(run, settings.steps))
            if run.step == settings.steps:
                return run
            if stop.asked:
                run.seconds = clock() - begun
                checkpoint.save(learner, run, settings.steps)
                raise Interrupted
            run.loss += _step(learner, network, material, settings, run.step)
            run.step += 1


def steps_for(
    network: Network,
    material: Material,
    settings: Settings,
    *,
    seconds: float,
    clock: Callable[[], float],
) -> int:
    """How many steps fit into CPU ``seconds``, goals and evaluations counted; at least one."""
    network = copy.deepcopy(network)
    learner = _learner(network, settings.seed)
    begun = clock()
    _ = material.goals  # computed here once, and not within a step
    left = seconds - (clock() - begun)
    begun = clock()
    _point(network, material, Run())
    left -= (POINTS + 1) * (clock() - begun)
    begun = clock()
    for step in range(MEASURED):
        _step(learner, network, material, settings, step)
    return max(1, int(left / max((clock() - begun) / MEASURED, 1e-9)))


def _learner(network: Network, seed: int) -> Learner:
    optimiser = torch.optim.AdamW(
        network.parameters(),
        lr=network.lesson.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=network.lesson.weight_decay,
    )
    return Learner(network, optimiser, torch.Generator().manual_seed(seed))


def _rate(step: int, steps: int) -> float:
    """Share of the highest rate: linear warm-up, then a cosine down to ``FLOOR``."""
    warm = max(1, round(WARM_UP * steps))
    done = max(0.0, (step - warm) / max(1, steps - warm))
    falling = FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(1.0, done))) / 2
    return min((step + 1) / warm, falling)


def _step(
    learner: Learner, network: Network, material: Material, settings: Settings, step: int
) -> float:
    """One update from several texts, every place counting the same; returns the loss at depth 1."""
    generator, optimiser = learner.generator, learner.optimiser
    picked = torch.randint(len(material.train), (network.lesson.batch,), generator=generator)
    texts = [material.train[index] for index in picked]
    goals = [material.goals[index] for index in picked]
    lineup = line_up(goals, material.head, generator)
    places = sum(len(text.rows(1)) for text in texts)
    for group in optimiser.param_groups:
        group["lr"] = network.lesson.learning_rate * _rate(step, settings.steps)
    optimiser.zero_grad(set_to_none=True)
    depths = len(network.lesson.weights)
    if network.lesson.drawn:
        depths = int(torch.randint(depths, (), generator=generator)) + 1
    loss = 0.0
    for text, goal in zip(texts, goals, strict=True):
        noise = torch.rand(text.states.shape, generator=generator).mul_(2).sub_(1)
        states = network(text, depths, noise.mul_(settings.noise))
        nats, gradients = _gradients(network, text, states, goal, lineup)
        torch.autograd.backward(states, [each.div_(places) for each in gradients])
        loss += nats / places
    torch.nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
    optimiser.step()
    return loss


def _gradients(
    network: Network, text: Text, found: Sequence[Tensor], goals: Goals, lineup: Lineup
) -> tuple[float, list[Tensor]]:
    """Loss at depth 1 summed over places, and the whole loss's gradient at every depth's states."""
    lesson = network.lesson
    shares, head = lineup.spread(goals), lineup.head
    known = shares.sum(dim=-1, keepdim=True)
    wanted = text.states[text.first :].float() if lesson.regression else None
    nats, gradients = 0.0, []
    for index, (states, weight) in enumerate(zip(found, lesson.weights, strict=False)):
        guess = (states.detach() @ head.T).log_softmax(dim=-1)
        if index == 0:
            nats = -float((shares * guess).sum())
        gradient = (guess.exp_().mul_(known[index:]) - shares[index:]) @ head
        if wanted is not None:  # of a Huber loss with respect to the states
            gradient += lesson.regression * (states.detach() - wanted[index:]).clamp_(-1, 1)
        gradients.append(gradient.mul_(weight))
    return nats, gradients


def _point(network: Network, material: Material, run: Run) -> Point:
    held = acceptance(network, material.held_out, material.head, material.ids, depth=1)
    since = run.step - (run.curve[-1].step if run.curve else 0)
    return Point(run.step, run.loss / since if since else None, held.conditional[0])


def _progress(run: Run, steps: int) -> str:
    point = run.curve[-1]
    loss = "" if point.loss is None else f"  loss {point.loss:.3f}"
    held = "" if point.acceptance is None else f"  held-out acceptance {point.acceptance:.3f}"
    left = ""
    if 0 < run.step < steps:
        left = f", about {run.seconds / run.step * (steps - run.step) / 60:.1f} left"
    return f"step {run.step}/{steps}{loss}{held}  {run.seconds / 60:.1f} CPU-min{left}"
